"""Blocks in host memory, on disk and in the object store, and the workers that use them."""
