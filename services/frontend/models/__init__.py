"""The models that can be asked."""
