"""What crosses a process border: messages, subjects, who owns which shard, error codes."""
