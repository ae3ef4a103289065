"""What all executors share: their interface, the running step, block tables."""
