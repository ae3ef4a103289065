"""Tenants: their keys, their share of threads, their NATS connections."""
