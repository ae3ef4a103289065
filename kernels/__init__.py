"""Compute kernels, each with a naive reference that the others are tested against."""
