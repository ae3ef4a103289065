"""What every process runs on: configuration, clocks, tasks, logs, metrics, a Redis client."""
