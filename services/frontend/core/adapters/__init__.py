"""Adapters by name."""
