"""One reply: its format, its reasoning, its text as it streams."""
