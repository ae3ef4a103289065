"""Other servers, measured on the same machine and model for comparison."""
