"""Layers of a transformers decoder, replaced by ones that compute the same faster.

Nothing here knows a model by its name. What looks like an RMS norm, a gated MLP, a rotary embedding
or siblings that share an input is first tried beside what would take its place; anything that does
not agree, or is not recognized, stays as transformers made it.
"""

from services.worker.device.layers.fast import FastLayers, Mode, speed_up, variant_products

__all__ = ["FastLayers", "Mode", "speed_up", "variant_products"]
