"""`symphony top`: the house, live, in a terminal."""
