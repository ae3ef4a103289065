"""Decisions, apart from all I/O: no module here opens a connection, starts a thread or reads a
clock.
"""
