"""Shapes of models that figures are measured with, beside that of 125 M."""

from loadtest.models import LlamaShape

TINY_LLAMA = LlamaShape(
    name="tiny", num_layers=2, hidden=64, inner=128, num_heads=2, vocab_size=128
)
# One decoder layer each. A small vocabulary, so that embedding and head cost nothing beside it.
LAYER_7B = LlamaShape(
    name="7B", num_layers=1, hidden=4096, inner=11008, num_heads=32, vocab_size=256
)
LAYER_13B = LlamaShape(
    name="13B", num_layers=1, hidden=5120, inner=13824, num_heads=40, vocab_size=256
)
