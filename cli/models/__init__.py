"""Models by name or by file: fetched, converted and kept before a deployment starts."""
