"""The models that are served, with their tokenizers or image processors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from services.frontend.core.models.fleet import Files, Fleet, LoadTokenizer, files_of
from services.frontend.core.models.model_names import ModelNames
from services.frontend.models.files import ModelFiles
from services.frontend.models.images import ImageProcessor
from services.frontend.rendering.tokenizer import LOAD_ERRORS, ModelTokenizer
from shared.errors import InvalidRequest, NoCapacity, NotFound
from shared.ids import HostId, ModelId, WorkerId
from shared.runtime.clock import Clock
from shared.wire.messages import AdapterRef, ModelCard, OneshotCard, Task, WorkerReport

log = logging.getLogger(__name__)

RETRY_LOAD_S = 10.0
SHOWN_MAX = 8
ENDPOINTS: dict[Task | None, str] = {
    None: "/v1/chat/completions and /v1/completions",
    "embed": "/v1/embeddings",
    "classify": "/v1/classify",
    "rerank": "/v1/rerank",
}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with a tokenizer, and with live workers or such as may come back.

    Attributes:
        adapter: that its turns run on; None: the model as it is.
    """

    card: ModelCard
    tokenizer: ModelTokenizer
    adapter: AdapterRef | None = None

    @property
    def adapter_hash(self) -> str:
        """Of the adapter; empty without one."""
        return "" if self.adapter is None else self.adapter.adapter_hash

    @property
    def vocab_size(self) -> int:
        """Token ids that requests may name: both model and tokenizer know them."""
        known = self.tokenizer.vocab_size
        return min(known, self.card.vocab_size) if self.card.vocab_size else known


@dataclass(frozen=True, slots=True)
class OneshotModel:
    """A one-shot model with live workers, and what makes its inputs."""

    card: OneshotCard
    processor: ModelTokenizer | ImageProcessor


class Models:
    """Fed with workers' reports; loads each tokenizer and image processor on first sight.

    Args:
        spawn: runs a coroutine for the life of the service.
        files: loads tokenizers and image processors.
        names: other names of models, see `core.models.model_names`.
        template_names: finds out what a tokenizer's template reads, see `Texts.template_names`.
        deployed: models that the deployment serves, even if no worker has reported them.
    """

    def __init__(
        self,
        clock: Clock,
        spawn: Callable[..., object],
        files: ModelFiles,
        names: Sequence[str],
        template_names: Callable[[ModelTokenizer], Awaitable[frozenset[str]]],
        deployed: Collection[str] = (),
    ) -> None:
        self._clock = clock
        self._files = files
        self._names = ModelNames(names)
        self._spawn = spawn
        self._template_names = template_names
        self._deployed = frozenset(map(ModelId, deployed))
        self._fleet = Fleet(clock.now_ns())
        self._tokenizers: dict[Files, ModelTokenizer] = {}
        self._images: dict[Files, ImageProcessor] = {}

    def on_report(self, report: WorkerReport) -> None:
        """Handler of WORKER_REPORT."""
        for effect in self._fleet.on_report(report, self._clock.now_ns()):
            if isinstance(effect, LoadTokenizer):
                self._spawn(self._load(effect.card), f"tokenizer {effect.card.model_id}")
            else:
                self._spawn(self._load_oneshot(effect.card), f"processor {effect.card.model_id}")

    def on_tick(self) -> None:
        """Forget workers that are long gone, and the files of models that were replaced."""
        self._fleet.forget_dead(self._clock.now_ns())
        kept = self._fleet.files()
        self._tokenizers = {name: made for name, made in self._tokenizers.items() if name in kept}
        self._images = {name: made for name, made in self._images.items() if name in kept}

    @property
    def num_loaded(self) -> int:
        """Tokenizers and image processors in memory."""
        return len(self._tokenizers) + len(self._images)

    def holders(self) -> tuple[set[WorkerId], set[HostId]]:
        """Workers, and hosts with a kvstore, that may have KV of sessions."""
        return self._fleet.holders(self._clock.now_ns())

    def own_name(self, name: str) -> ModelId:
        """The model's own name for a name in a request. A model that a worker serves under this
        name comes first.
        """
        if name not in self._names.others or self._is_own(ModelId(name)):
            return ModelId(name)
        return ModelId(self._names.of(name, lambda: self._fleet.models(self._clock.now_ns())))

    def other_names(self) -> list[tuple[str, ModelId]]:
        """Other names of models, each with the model's own."""
        named = [(name, self.own_name(name)) for name in self._names.others]
        return [(name, model_id) for name, model_id in named if name != model_id]

    def all(self) -> list[ServedModel]:
        """Every model that can be asked now, by name."""
        cards = self._fleet.models(self._clock.now_ns())
        return [
            ServedModel(cards[name], tokenizer)
            for name in sorted(cards)
            if (tokenizer := self._tokenizers.get(files_of(cards[name]))) is not None
        ]

    def only(self) -> ServedModel:
        """The only model, for a request that names none.

        Raises:
            InvalidRequest: there are several.
            NoCapacity: there is none now.
        """
        names = list(self._fleet.models(self._clock.now_ns()))
        if not names:
            raise NoCapacity(f"no model can be served now: {self.why_away()}")
        if len(names) > 1:
            raise InvalidRequest("model: there are several, name one", "model")
        return self.get(names[0])

    def all_oneshot(self) -> list[OneshotModel]:
        """Every one-shot model that can be asked now, by name."""
        models = []
        for card in self._fleet.oneshot_models(self._clock.now_ns()):
            processor = self._processor(card)
            if processor is not None:
                models.append(OneshotModel(card, processor))
        return models

    def served(self, model_id: str) -> ServedModel:
        """As `get`, of a model that can be asked now.

        Raises:
            NoCapacity: also, no worker serves it now.
        """
        model = self.get(model_id)
        if self._fleet.card(model.card.model_id, self._clock.now_ns()) is None:
            raise self._away(model_id)
        return model

    def names(self) -> list[str]:
        """Ids of all that can be asked now."""
        served: list[ServedModel | OneshotModel] = [*self.all(), *self.all_oneshot()]
        return [str(model.card.model_id) for model in served]

    def get(self, model_id: str) -> ServedModel:
        """The model for text that a request names. If its last worker went away lately, a turn
        waits for it at the scheduler as one does that came before.

        Raises:
            NotFound: no worker ever named it, it is not deployed, and none is about to load it.
            InvalidRequest: it is a one-shot model.
            NoCapacity: its tokenizer is not loaded yet, or no worker has reported it.
        """
        name = self.own_name(model_id)
        card = self._fleet.card(name, self._clock.now_ns()) or self._fleet.remembered(name)
        if card is None:
            self._refuse_other_task(name)
            raise self._unknown(model_id)
        tokenizer = self._tokenizers.get(files_of(card))
        if tokenizer is None:
            raise NoCapacity(f"the tokenizer of {model_id!r} is not loaded")
        return ServedModel(card, tokenizer)

    def oneshot(self, model_id: str, task: Task) -> OneshotModel:
        """The one-shot model that a request names.

        Raises:
            NotFound: no worker ever named it, it is not deployed, and none is about to load it.
            InvalidRequest: it does something else than `task`.
            NoCapacity: no worker serves it now, or what makes its inputs is not there yet.
        """
        name = self.own_name(model_id)
        card = self._fleet.oneshot_card(name, self._clock.now_ns())
        if (card or self._fleet.oneshot_remembered(name)) is None:
            if self._fleet.remembered(name) is not None:
                raise elsewhere(model_id, None)
            raise self._unknown(model_id)
        self._refuse_other_task(name, task)
        if card is None:
            raise self._away(model_id)
        processor = self._processor(card)
        if processor is None:
            raise NoCapacity(f"the files of {model_id!r} are not loaded")
        return OneshotModel(card, processor)

    def knows(self, model_id: str) -> bool:
        """Whether a worker serves a model of this name, for text or not, or ever did so, or the
        deployment is to serve it.
        """
        return self._is_own(self.own_name(model_id))

    def check_exists(self, model_id: str) -> None:
        """Check the name of a model for text, whether it can be served now or not.

        Raises:
            NotFound: there is none.
            InvalidRequest: it is a one-shot model's.
        """
        self._refuse_other_task(self.own_name(model_id))
        if not self.knows(model_id) and isinstance(error := self._unknown(model_id), NotFound):
            raise error

    def why_away(self) -> str:
        """What there is of workers while a model cannot be served."""
        if loading := self._fleet.loading(self._clock.now_ns()):
            shown = ", ".join(map(str, loading[:SHOWN_MAX]))
            return f"still loading: worker {shown}" + (", ..." if loading[SHOWN_MAX:] else "")
        if not self._fleet.has_report:
            return "no worker has reported yet: workers are starting, or there are none"
        return "its workers are away, or have not begun to load"

    def is_served(self, model_id: ModelId) -> bool:
        """Whether a worker serves a model for text now."""
        return self._fleet.card(model_id, self._clock.now_ns()) is not None

    def task(self, model_id: str) -> Task | None:
        """What a one-shot model does; None for others and unknown ones."""
        card = self._fleet.oneshot_remembered(self.own_name(model_id))
        return None if card is None else card.task

    def _is_own(self, name: ModelId) -> bool:
        return self._fleet.knows(name) or name in self._deployed

    def _refuse_other_task(self, name: ModelId, task: Task | None = None) -> None:
        actual = self.task(name)
        if actual is not None and actual != task:
            raise elsewhere(name, actual)

    def _unknown(self, model_id: str) -> NotFound | NoCapacity:
        now_ns, name = self._clock.now_ns(), self.own_name(model_id)
        if self._fleet.is_learning(now_ns):
            return NoCapacity("this frontend has just started and no worker has reported yet")
        is_of_only = name == model_id and name in self._names.others
        if self._is_own(name) or (is_of_only and not self._fleet.models(now_ns)):
            return self._away(model_id)
        is_starting = bool(self._fleet.loading(now_ns)) or not self._fleet.has_report
        if is_starting and not self._deployed:  # it is not known what will be served
            return self._away(model_id)
        return NotFound(f"The model `{model_id}` does not exist.", "model", code="model_not_found")

    def _away(self, model_id: str) -> NoCapacity:
        return NoCapacity(f"no worker serves {model_id!r} now: {self.why_away()}")

    def _processor(self, card: OneshotCard) -> ModelTokenizer | ImageProcessor | None:
        if card.modality == "image":
            return self._images.get(files_of(card))
        return self._tokenizers.get(files_of(card))

    async def _load(self, card: ModelCard | OneshotCard) -> None:
        try:
            made = await self._files.tokenizer(card.source)
            made.template_names = await self._template_names(made)
            self._tokenizers[files_of(card)] = made
        except (*LOAD_ERRORS, NoCapacity) as error:
            await self._retry_load(card, error)
        else:
            log.info("tokenizer loaded", extra={"model": card.model_id, "source": card.source})

    async def _load_oneshot(self, card: OneshotCard) -> None:
        if card.modality == "text":
            await self._load(card)
            return
        try:
            made = await self._files.image_processor(card.source)
            self._images[files_of(card)] = made
        except LOAD_ERRORS as error:
            await self._retry_load(card, error)

    async def _retry_load(self, card: ModelCard | OneshotCard, error: Exception) -> None:
        log.error(
            "tokenizer or image processor cannot be loaded: its model is unavailable",
            extra={"model": card.model_id, "source": card.source, "error": str(error)},
        )
        await asyncio.sleep(RETRY_LOAD_S)
        self._fleet.on_load_failed(card)


def elsewhere(model_id: str, task: Task | None) -> InvalidRequest:
    """The error of a model that is asked where it is not served.

    Args:
        task: what it does; None: it generates text.
    """
    where = ENDPOINTS[task]
    return InvalidRequest(
        f"The model `{model_id}` is not served by this endpoint; ask {where}.",
        "model",
        code="wrong_endpoint",
    )
