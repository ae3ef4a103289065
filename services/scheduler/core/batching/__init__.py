"""Deferred batch scheduling of one-shot models (see `batcher.py` for where to begin)."""
