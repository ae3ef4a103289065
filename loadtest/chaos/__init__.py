"""Faults on purpose (`symphony bench chaos`): in virtual time, and in a deployment of real
processes.

A mode is a module with ``run``, which returns what machines read; `loadtest.bench.chaos` parses the
command line. Modes with a real deployment share `crowd` (who streams all the time), `adapters`
(what they may run on), `scene` (the deployment and its crowd) and `judge` (what a fault may cost).
"""
