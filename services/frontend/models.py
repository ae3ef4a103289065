"""The models that can be asked now: who serves them, and their tokenizers."""

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass

from services.frontend.core.fleet import Fleet
from services.frontend.tokenizer import ModelTokenizer, load_tokenizer
from shared.clock import Clock
from shared.errors import NoCapacity, NotFound
from shared.ids import HostId, ModelId
from shared.messages import ModelCard, WorkerReport

log = logging.getLogger(__name__)

RETRY_LOAD_S = 10.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with live workers and a tokenizer."""

    card: ModelCard
    tokenizer: ModelTokenizer


class Models:
    """Fed with workers' reports; loads each tokenizer in a thread on first sight.

    Args:
        spawn: runs a coroutine for the life of the service.
    """

    def __init__(self, clock: Clock, spawn: Callable[..., object]) -> None:
        self._clock = clock
        self._spawn = spawn
        self._fleet = Fleet()
        self._tokenizers: dict[str, ModelTokenizer] = {}

    def on_report(self, report: WorkerReport) -> None:
        """Handler of WORKER_REPORT."""
        for effect in self._fleet.on_report(report, self._clock.now_ns()):
            self._spawn(self._load(effect.card), f"tokenizer {effect.card.model_id}")

    def on_tick(self) -> None:
        """Forget workers that are long gone."""
        self._fleet.forget_dead(self._clock.now_ns())

    def hosts(self) -> set[HostId]:
        """Hosts with a live worker."""
        return self._fleet.hosts(self._clock.now_ns())

    def all(self) -> list[ServedModel]:
        """Every model that can be asked now, by name."""
        cards = self._fleet.models(self._clock.now_ns())
        return [
            ServedModel(cards[name], self._tokenizers[cards[name].source])
            for name in sorted(cards)
            if cards[name].source in self._tokenizers
        ]

    def get(self, model_id: str) -> ServedModel:
        """The model a request names.

        Raises:
            NotFound: no worker ever served it.
            NoCapacity: no worker serves it now, or its tokenizer is not there yet.
        """
        name = ModelId(model_id)
        card = self._fleet.card(name, self._clock.now_ns())
        if card is None:
            if self._fleet.was_seen(name):
                raise NoCapacity(f"no worker serves {model_id!r} now")
            raise NotFound(
                f"The model `{model_id}` does not exist.", "model", code="model_not_found"
            )
        tokenizer = self._tokenizers.get(card.source)
        if tokenizer is None:
            raise NoCapacity(f"the tokenizer of {model_id!r} is not loaded")
        return ServedModel(card, tokenizer)

    async def _load(self, card: ModelCard) -> None:
        if card.source in self._tokenizers:
            return
        try:
            self._tokenizers[card.source] = await asyncio.to_thread(load_tokenizer, card.source)
        except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
            log.error(
                "tokenizer cannot be loaded: its model is unavailable",
                extra={"model": card.model_id, "source": card.source, "error": str(error)},
            )
            await asyncio.sleep(RETRY_LOAD_S)
            self._fleet.on_load_failed(card)
        else:
            gc.freeze()  # it stays: the collector need not look through it again and again
            log.info("tokenizer loaded", extra={"model": card.model_id, "source": card.source})
