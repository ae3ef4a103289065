"""What comes into the arenas: from this disk, other hosts, the object store."""
