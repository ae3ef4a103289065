"""A cluster in virtual time around the production cores: how fast it would be, and why."""
