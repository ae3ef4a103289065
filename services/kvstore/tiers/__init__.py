"""Where this host keeps KV: host memory, disk, and the object store."""
