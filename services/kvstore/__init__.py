"""One per host: DRAM arena, disk below it, and metadata in Redis that lists what is here."""
