"""Decisions of the frontend: the life of a turn, text from tokens, who is alive, what to reuse."""
