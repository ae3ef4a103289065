"""The registry of adapters: their files on this host's disk, and their index in Redis."""
