"""What a deployment consists of: its parts, and what is written before it starts."""
