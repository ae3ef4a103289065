"""What is on disk: the index of its blocks, and the order in which they leave."""
