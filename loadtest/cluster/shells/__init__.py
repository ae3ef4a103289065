"""Shells of frontend, worker and kvstore that only the simulated cluster runs: production cores
without the parts that cost time.
"""
