"""What keeps a house running: its children, started, watched, asked and stopped."""
