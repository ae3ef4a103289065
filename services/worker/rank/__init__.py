"""A rank of a model that several processes compute, tensor parallel."""
