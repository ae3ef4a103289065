"""The decisions of the lease."""
