"""The lease: which of the schedulers leads."""
