"""Workloads as scripts: what people and agents ask for, and what must have happened before."""
