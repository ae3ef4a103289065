"""The executor of a CPU."""
