"""`symphony status` and `symphony doctor`: how a house is, and what would keep it from starting."""
