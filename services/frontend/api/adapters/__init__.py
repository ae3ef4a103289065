"""Endpoints for LoRA adapters, over HTTP and NATS."""
