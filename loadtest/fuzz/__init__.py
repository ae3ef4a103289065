"""Strangers who mean no good, against a whole house with the demo model (`symphony bench fuzz`).

A mode is a module with ``add_options``, ``house``, which opens the house it wants, and ``run``,
which tells a `report.Report`; `command` lists the modes.
"""
