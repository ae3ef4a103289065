"""The advisory tracker: manages every advisory from its announcement to its outcome."""
