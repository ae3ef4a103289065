"""`symphony status` and `symphony doctor`: how a deployment is, and what would keep it from
starting.
"""
