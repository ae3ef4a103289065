"""What Redis knows of this host: an index of its sessions and adapters."""
