"""``symphony bench families``: which families of models this engine computes right.

Each family that transformers can generate text with is made small and held against transformers, as
a worker does before it serves a model (`services.worker.device.verify`): with the options that its
config has by default, and with those of `variants`. What comes of it becomes a page.
"""

from loadtest.bench.families.command import run

__all__ = ["run"]
