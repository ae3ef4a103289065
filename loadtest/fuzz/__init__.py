"""Strangers who mean no good, against a whole deployment with the demo model (`symphony bench
fuzz`).

A mode is a module with ``add_options``, ``deployment``, which opens the deployment it wants, and
``run``, which returns a `report.Report`; `command` lists the modes.
"""
