"""``symphony bench NAME``: each module has ``run(argv) -> dict``, the figures it measured."""
