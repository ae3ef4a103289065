"""The advisory tracker: the life of every advisory."""
