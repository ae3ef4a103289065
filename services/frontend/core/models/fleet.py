"""Which models are served now, by the workers' reports."""

from dataclasses import dataclass
from typing import NamedTuple

from services.frontend.core.models.catalog import Catalog
from shared.ids import HostId, ModelId, WorkerId
from shared.wire.messages import Modality, ModelCard, OneshotCard, WorkerReport

INTERVALS_MISSED_MAX = 3
MARGIN_NS = 500_000_000
LEARNING_NS = 5_000_000_000  # workers report twice a second; their connections may be new, too
REMEMBERED_NS = 600_000_000_000
NAMES_MAX = 4096


class Files(NamedTuple):
    """Identifies the files of a tokenizer or image processor.

    Attributes:
        fingerprint: of a one-shot model: another model in the same folder has other files. Empty
            for a model for text, whose workers may use different dtypes with the same files.
    """

    source: str
    fingerprint: str
    modality: Modality


@dataclass(frozen=True, slots=True)
class LoadTokenizer:
    """Load the tokenizer of a new model."""

    card: ModelCard


@dataclass(frozen=True, slots=True)
class LoadProcessor:
    """Load the tokenizer or image processor of a new one-shot model."""

    card: OneshotCard


@dataclass(slots=True)
class _Seen:
    report: WorkerReport
    at_ns: int

    def alive(self, now_ns: int) -> bool:
        patience_ns = INTERVALS_MISSED_MAX * self.report.interval_ns + MARGIN_NS
        return now_ns - self.at_ns <= patience_ns


class Fleet:
    """Workers that reported. A worker that is silent for three report intervals is gone. What it
    served is remembered for ten minutes, for it may come back, and the names of models for good.
    """

    def __init__(self, started_at_ns: int = 0) -> None:
        self._started_at_ns = started_at_ns
        self._has_report = False
        self._seen: dict[WorkerId, _Seen] = {}
        self._known: dict[ModelId, ModelCard] = {}
        self._known_oneshot: dict[ModelId, OneshotCard] = {}
        self._named_at_ns: dict[ModelId, int] = {}
        self._names: dict[ModelId, None] = {}  # the one that was named last is the last
        self._asked: set[Files] = set()
        self._catalog = Catalog()

    def on_report(self, report: WorkerReport, now_ns: int) -> list[LoadTokenizer | LoadProcessor]:
        """A worker reported. Reports older than the latest one are dropped."""
        seen = self._seen.get(report.worker_id)
        if (
            seen is not None
            and seen.report.incarnation == report.incarnation
            and report.seq <= seen.report.seq
        ):
            return []
        self._has_report = True
        self._seen[report.worker_id] = _Seen(report, now_ns)
        cards = report.oneshot if report.state == "ready" else []
        self._catalog.put(report.worker_id, [card for card in cards if _has_times(card)])
        effects: list[LoadTokenizer | LoadProcessor] = []
        for card in report.models:
            self._known[card.model_id] = card
            self._name(card.model_id, now_ns)
            if self._is_new(card):
                effects.append(LoadTokenizer(card))
        for oneshot in report.oneshot:
            self._known_oneshot[oneshot.model_id] = oneshot
            self._name(oneshot.model_id, now_ns)
            if self._is_new(oneshot):
                effects.append(LoadProcessor(oneshot))
        return effects

    def knows(self, model_id: ModelId) -> bool:
        """Whether a worker has ever named the model."""
        return model_id in self._names

    @property
    def has_report(self) -> bool:
        """Whether a worker has ever reported."""
        return self._has_report

    def loading(self, now_ns: int) -> list[WorkerId]:
        """Live workers that serve nothing yet."""
        alive = (seen.report for seen in self._seen.values() if seen.alive(now_ns))
        return sorted(report.worker_id for report in alive if report.state == "loading")

    def is_learning(self, now_ns: int) -> bool:
        """Whether this frontend has just started, and no worker has reported yet."""
        return not self._has_report and now_ns - self._started_at_ns < LEARNING_NS

    def on_load_failed(self, card: ModelCard | OneshotCard) -> None:
        """Load again at the next report: the files may not have been there yet."""
        self._asked.discard(files_of(card))

    def forget_dead(self, now_ns: int) -> None:
        """Drop workers that are gone, and models that no worker has reported for some time."""
        for worker_id in [name for name, seen in self._seen.items() if not seen.alive(now_ns)]:
            del self._seen[worker_id]
            self._catalog.put(worker_id, [])
        oldest_ns = now_ns - REMEMBERED_NS
        for model_id in [name for name, at_ns in self._named_at_ns.items() if at_ns < oldest_ns]:
            del self._named_at_ns[model_id]
            self._known.pop(model_id, None)
            self._known_oneshot.pop(model_id, None)
        self._asked &= self.files()

    def files(self) -> set[Files]:
        """Files to keep: of every model that a worker reports, and of those that are remembered."""
        cards: list[ModelCard | OneshotCard] = [
            *self._known.values(),
            *self._known_oneshot.values(),
        ]
        for seen in self._seen.values():
            cards += seen.report.models
            cards += seen.report.oneshot
        return {files_of(card) for card in cards}

    def models(self, now_ns: int) -> dict[ModelId, ModelCard]:
        """Models that some ready worker serves, by name."""
        cards: dict[ModelId, ModelCard] = {}
        for worker_id in sorted(self._seen):
            seen = self._seen[worker_id]
            if seen.report.state == "ready" and seen.alive(now_ns):
                for card in seen.report.models:
                    cards.setdefault(card.model_id, card)
        return cards

    def card(self, model_id: ModelId, now_ns: int) -> ModelCard | None:
        """The model's card if it can be served now; cheap, for every request asks."""
        for seen in self._seen.values():
            if seen.report.state == "ready" and seen.alive(now_ns):
                for card in seen.report.models:
                    if card.model_id == model_id:
                        return card
        return None

    def remembered(self, model_id: ModelId) -> ModelCard | None:
        """The model's card if a worker named it lately: one may be about to serve it again."""
        return self._known.get(model_id)

    def oneshot_models(self, now_ns: int) -> list[OneshotCard]:
        """One-shot models that some ready worker serves, by name."""
        cards = (self.oneshot_card(model_id, now_ns) for model_id in self._catalog.names())
        return [card for card in cards if card is not None]

    def oneshot_card(self, model_id: ModelId, now_ns: int) -> OneshotCard | None:
        """The one-shot model's card if it can be served now."""
        workers = self._catalog.workers(model_id)
        if any(self._seen[worker_id].alive(now_ns) for worker_id in workers):
            return self._catalog.card(model_id)
        return None

    def oneshot_remembered(self, model_id: ModelId) -> OneshotCard | None:
        """The one-shot model's card if a worker named it lately."""
        return self._known_oneshot.get(model_id)

    def holders(self, now_ns: int) -> tuple[set[WorkerId], set[HostId]]:
        """What may have KV of sessions: live workers that are past loading, and those of their
        hosts that reported a kvstore.
        """
        alive = [seen.report for seen in self._seen.values() if seen.alive(now_ns)]
        workers = {report.worker_id for report in alive if report.state != "loading"}
        return workers, {report.host_id for report in alive if report.has_kvstore}

    def _name(self, model_id: ModelId, now_ns: int) -> None:
        self._named_at_ns[model_id] = now_ns
        self._names.pop(model_id, None)
        self._names[model_id] = None
        if len(self._names) > NAMES_MAX:
            del self._names[next(iter(self._names))]

    def _is_new(self, card: ModelCard | OneshotCard) -> bool:
        files = files_of(card)
        if files in self._asked:
            return False
        self._asked.add(files)
        return True


def files_of(card: ModelCard | OneshotCard) -> Files:
    """What makes a model's inputs."""
    if isinstance(card, ModelCard):
        return Files(card.source, "", "text")
    return Files(card.source, card.fingerprint, card.modality)


def _has_times(card: OneshotCard) -> bool:
    """Whether the model can be batched at all."""
    return bool(card.variants) and all(variant.batch_ns for variant in card.variants)
