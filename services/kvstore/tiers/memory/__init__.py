"""Host memory: the arenas that workers share."""
