"""Traces of agents, read into one form, and replayed."""
