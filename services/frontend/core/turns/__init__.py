"""Turns and jobs in flight, from submission to their last token or result."""
