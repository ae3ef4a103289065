"""One per host: DRAM arena, LMDB below it, and metadata in Redis that tells what is here."""
