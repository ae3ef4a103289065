"""`symphony chat`: a chat in the terminal that streams, and announces each turn before it comes."""
