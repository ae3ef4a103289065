"""Faults on purpose (`symphony bench chaos`): in virtual time, and in a house of real processes.

A mode is a module with ``run``, which returns what machines read; `loadtest.bench.chaos` parses the
command line. Modes with a real house share `crowd` (who streams all the time), `adapters` (what
they may run on), `scene` (the house and its crowd) and `judge` (what a fault may cost).
"""
