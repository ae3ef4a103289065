"""What runs a step plan: executors (real and emulated), the mover of KV bytes, the sampler."""
