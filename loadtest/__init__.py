"""Loads, measurements and figures."""
