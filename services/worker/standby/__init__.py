"""A process that can become a worker: `__main__`."""
