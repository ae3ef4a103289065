"""The endpoints, one file a group."""
