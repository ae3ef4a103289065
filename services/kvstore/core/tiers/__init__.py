"""Blocks in host memory, on disk and in the object store, and who uses them."""
