"""`symphony up`: what a house is made of, what is checked and written before, and its start."""
