"""Decisions about HTTP connections and requests."""
