"""Turns and jobs in flight, and what waits to be published for them."""
