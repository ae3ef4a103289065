"""Quotas, rates and capacities."""
