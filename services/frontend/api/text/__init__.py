"""Generated text: chats, completions, and what they share."""
