"""The whole house in virtual time: every production core, on a bad network, with bad machines.

A seed gives the same run again. See docs/reliability.md for what is checked.
"""

from loadtest.world.world import Options, World, run_seed

__all__ = ["Options", "World", "run_seed"]
