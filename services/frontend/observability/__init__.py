"""Metrics, traces, access log, and the view of the whole deployment."""
