"""Grammars, compiled by processes of their own, which can be ended."""
