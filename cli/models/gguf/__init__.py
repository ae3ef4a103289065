"""A GGUF file as a folder in transformers' format: dequantized once, so that nothing else needs to
know of GGUF.

Every metadata key and every tensor of a file is accounted for: read, known to change nothing, or
the file is refused by its name. transformers' own reader drops what it does not know.
"""

from cli.models.gguf.conversion import convert

__all__ = ["convert"]
