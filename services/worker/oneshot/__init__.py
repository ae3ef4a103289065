"""One-shot models on a worker: loading, profiling, and running the scheduler's batches."""
