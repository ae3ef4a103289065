"""How a service starts, stops and reports what breaks it."""

from shared.service.service import Machine, Runtime, run, run_on

__all__ = ["Machine", "Runtime", "run", "run_on"]
