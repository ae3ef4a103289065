"""Which tokens may come next where a turn's reply is held to a grammar."""

from services.worker.device.grammar.grammars import Asked, Grammars, asked_of
from services.worker.device.grammar.masks import Masks, Words, allows
from services.worker.device.grammar.vocabulary import Vocabulary

__all__ = ["Asked", "Grammars", "Masks", "Vocabulary", "Words", "allows", "asked_of"]
