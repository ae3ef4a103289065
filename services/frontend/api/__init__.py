"""The endpoints, one folder a subject, one file a group."""
