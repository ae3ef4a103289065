"""From a request to turns: one way, of which each stage takes what the one before made."""
