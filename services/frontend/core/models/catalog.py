"""One-shot models by name, and which workers serve them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from shared.ids import ModelId, WorkerId
from shared.wire.messages import OneshotCard


class Catalog:
    """The cards of ready workers. Workers may differ in speed; for a request the fastest counts,
    for the scheduler may choose it. While they differ in weights, as when a model is replaced, all
    requests go to the version that most of them have.
    """

    def __init__(self) -> None:
        self._cards: dict[ModelId, dict[WorkerId, OneshotCard]] = {}
        self._served: dict[WorkerId, list[OneshotCard]] = {}
        self._merged: dict[ModelId, OneshotCard] = {}

    def put(self, worker_id: WorkerId, cards: list[OneshotCard]) -> None:
        """What a worker serves now; nothing takes it out. A model named twice is served once."""
        cards = list({card.model_id: card for card in cards}.values())
        served = self._served.get(worker_id, [])
        if cards == served:
            return
        for card in served:
            workers = self._cards[card.model_id]
            del workers[worker_id]
            if not workers:
                del self._cards[card.model_id]
        if cards:
            self._served[worker_id] = cards
        else:
            del self._served[worker_id]
        for card in cards:
            self._cards.setdefault(card.model_id, {})[worker_id] = card
        for card in [*served, *cards]:
            self._merged.pop(card.model_id, None)

    def names(self) -> list[ModelId]:
        """Every model, in order."""
        return sorted(self._cards)

    def workers(self, model_id: ModelId) -> Iterable[WorkerId]:
        """Workers that serve a model."""
        return self._cards.get(model_id, ())

    def card(self, model_id: ModelId) -> OneshotCard:
        """The model's card in the version that most workers have (of several, the newest), each
        variant with the times of the worker that runs one input of it fastest.
        """
        merged = self._merged.get(model_id)
        if merged is None:
            workers = self._cards[model_id]
            cards = _of_one_version([workers[name] for name in sorted(workers)])
            merged = self._merged[model_id] = _merge(cards)
        return merged


def _of_one_version(cards: list[OneshotCard]) -> list[OneshotCard]:
    num_of = Counter(card.fingerprint for card in cards)
    chosen = max(cards, key=lambda card: (num_of[card.fingerprint], card.created, card.fingerprint))
    return [card for card in cards if card.fingerprint == chosen.fingerprint]


def _merge(cards: list[OneshotCard]) -> OneshotCard:
    first = cards[0]
    fastest = {variant.variant: variant for variant in first.variants}
    for card in cards[1:]:
        for variant in card.variants:
            known = fastest.get(variant.variant)
            if known is None or variant.batch_ns[:1] < known.batch_ns[:1]:
                fastest[variant.variant] = variant
    return replace(first, variants=[fastest[size] for size in sorted(fastest)])
