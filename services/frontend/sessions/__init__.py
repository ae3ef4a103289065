"""Session records and stored responses in Redis."""
