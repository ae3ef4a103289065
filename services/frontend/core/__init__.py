"""Decisions of the frontend: turns, text from tokens, live workers, what to reuse."""
