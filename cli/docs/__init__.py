"""The site that the docs are built into, and the references in it that are made from the code."""
