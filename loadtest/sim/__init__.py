"""The production services in virtual time, on a bad network, with bad machines."""
