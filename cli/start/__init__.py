"""`symphony up`: a deployment's parts, what is checked and written before, and its start."""
