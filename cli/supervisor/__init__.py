"""What keeps a deployment running: its children, started, watched, asked and stopped."""
