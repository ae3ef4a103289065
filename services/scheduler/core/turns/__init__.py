"""Turns: who is there to run them, which worker runs which, what becomes of those that are lost."""
