"""What all parts of the core share: what is to be done, and when."""
