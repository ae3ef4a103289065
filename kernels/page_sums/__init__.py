"""Checksums of many pages by one call: xxh3-64 of each page's bytes, the value that disks, objects
and other hosts hold a page against.

A page is hashed in blocks of 1,024 bytes. What the bytes of a block add to eight accumulators does
not depend on the blocks before it; only the step from one block to the next does, which is a few
operations. So a core reads a page as fast as memory gives it, and a device computes all blocks of
all pages side by side (`triton.py`).

Source: xxHash, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md (XXH3, long inputs,
default secret, no seed).
"""
