"""The `symphony` command: starts, stops, inspects, measures and tests the deployment."""
