"""What is stored of sessions and responses."""
