"""Which one-shot models a worker holds: it loads and unloads them on the scheduler's order.

An order is the whole set of models, so a repeated one changes nothing. A model that is to go takes
no batch any more and is unloaded once the last one ended; then the missing ones are loaded, one at
a time, while the others serve.

Source: deferred batch scheduling, section 4.4.
"""

from collections.abc import Collection
from dataclasses import replace

from services.worker.oneshot.effects import LoadModel, UnloadModel
from shared.ids import ModelId
from shared.wire.messages import OneshotCard, OneshotHold, OneshotLack

RETRY_NS = 600_000_000_000  # a model that could not be loaded is tried again after this


class HeldModels:
    """Takes orders, returns what is to be loaded and unloaded.

    Args:
        cards: all models of the configuration.
        bytes_max: for models loaded on order; 0: all are loaded, and stay so.
    """

    def __init__(self, cards: Collection[OneshotCard], bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._cards = {card.model_id: card for card in cards}
        self._held: set[ModelId] = set() if bytes_max else set(self._cards)
        self._wanted = sorted(self._held)
        self._loading: ModelId | None = None
        self._unloading: set[ModelId] = set()
        self._lacks: dict[ModelId, tuple[str, int]] = {}  # why, and since when
        self._last: dict[str, tuple[int, int]] = {}  # fence and number of an order, by leadership

    def card(self, model_id: ModelId) -> OneshotCard | None:
        """The card of a model that can be given batches."""
        is_served = model_id in self._held and model_id in self._wanted
        return self._cards[model_id] if is_served else None

    def batch_ns(self, model_id: ModelId, variant: int) -> list[int]:
        """The profile of a model that it holds, or held; empty if it has no such variant."""
        card = self._cards.get(model_id)
        variants = [] if card is None else card.variants
        return next((each.batch_ns for each in variants if each.variant == variant), [])

    def cards(self) -> list[OneshotCard]:
        """As a report lists them."""
        return [
            replace(card, is_loaded=self.card(model_id) is not None)
            for model_id, card in self._cards.items()
        ]

    def lacks(self, now_ns: int) -> list[OneshotLack]:
        """Models that it was to load and cannot."""
        self._lacks = {m: why for m, why in self._lacks.items() if now_ns - why[1] < RETRY_NS}
        return [OneshotLack(model_id=m, reason=why) for m, (why, _) in self._lacks.items()]

    def on_order(self, order: OneshotHold) -> bool:
        """Take the order, if none came that was given later; the caller has checked its fence."""
        given = (order.fence, order.seq)
        if not self.bytes_max or given < self._last.get(order.leadership, given):
            return False
        self._last[order.leadership] = given
        self._wanted = [m for m in dict.fromkeys(order.models) if m in self._cards]
        return True

    def on_loaded(self, model_id: ModelId, card: OneshotCard | None, why: str, now_ns: int) -> None:
        """A load has ended.

        Args:
            card: None if it failed.
            why: it failed.
        """
        assert self._loading == model_id, "one loads at a time"
        self._loading = None
        if card is None:
            self._lacks[model_id] = (why, now_ns)
        else:
            self._cards[model_id] = card
            self._held.add(model_id)

    def on_unloaded(self, model_id: ModelId) -> None:
        """Its memory is free."""
        self._unloading.remove(model_id)

    def changes(self, in_use: Collection[ModelId], now_ns: int) -> list[LoadModel | UnloadModel]:
        """What is to be done next.

        Args:
            in_use: models of batches that wait or run.
        """
        going = sorted(self._held - set(self._wanted) - set(in_use))
        self._held.difference_update(going)
        self._unloading.update(going)
        unloads: list[LoadModel | UnloadModel] = [UnloadModel(model_id) for model_id in going]
        return unloads + self._load_next(now_ns)

    def _load_next(self, now_ns: int) -> list[LoadModel]:
        lacking = {lack.model_id for lack in self.lacks(now_ns)}
        for model_id in self._wanted:
            if self._loading is not None:
                break
            if model_id in self._held or model_id in self._unloading or model_id in lacking:
                continue
            if self._fits(model_id):
                self._loading = model_id
                return [LoadModel(model_id)]
            if not self._unloading and self._held <= set(self._wanted):
                size = self._cards[model_id].static_bytes
                why = f"its {size} bytes do not fit beside the others in {self.bytes_max}"
                self._lacks[model_id] = (why, now_ns)
        return []

    def _fits(self, model_id: ModelId) -> bool:
        cards = [self._cards[m] for m in {*self._held, *self._unloading, model_id}]
        peak = max(card.dynamic_bytes for card in cards)
        return sum(card.static_bytes for card in cards) + peak <= self.bytes_max
