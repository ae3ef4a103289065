"""What crosses a process border: messages, subjects, which shard owns what, error codes."""
