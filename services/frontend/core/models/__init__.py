"""Which models are served, and under which names."""
