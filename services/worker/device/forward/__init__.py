"""A forward pass of our own for decoders whose parts it knows, read from the loaded module as data.

Nothing here knows a model by its name: a decoder is read by the names that transformers gives to
its parts, tried beside transformers' own forward, and left to that one where it does not agree.
"""

from services.worker.device.forward.decoder import Decoder
from services.worker.device.forward.reading import use_own_forward

__all__ = ["Decoder", "use_own_forward"]
