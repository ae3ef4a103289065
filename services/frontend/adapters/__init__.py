"""Adapters: by name, registered, uploaded."""
