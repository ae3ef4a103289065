"""Deferred batch scheduling of one-shot models (see `policies.py` for where to begin)."""
