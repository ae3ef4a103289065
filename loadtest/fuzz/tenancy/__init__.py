"""One tenant that tries to reach what is another's (`--tenants`)."""
