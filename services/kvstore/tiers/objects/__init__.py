"""The object store: a bucket that all hosts share (S3, or what speaks like it)."""
