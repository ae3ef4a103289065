"""Which models can be served now, from the workers' reports alone."""

from dataclasses import dataclass

from shared.ids import HostId, ModelId, WorkerId
from shared.messages import ModelCard, WorkerReport

INTERVALS_MISSED_MAX = 3
MARGIN_NS = 500_000_000


@dataclass(frozen=True, slots=True)
class LoadTokenizer:
    """A model was seen whose tokenizer is not known."""

    card: ModelCard


@dataclass(slots=True)
class _Seen:
    report: WorkerReport
    at_ns: int

    def alive(self, now_ns: int) -> bool:
        patience_ns = INTERVALS_MISSED_MAX * self.report.interval_ns + MARGIN_NS
        return now_ns - self.at_ns <= patience_ns


class Fleet:
    """Workers heard of. A worker that is silent for three report intervals is gone."""

    def __init__(self) -> None:
        self._seen: dict[WorkerId, _Seen] = {}
        self._ever: dict[ModelId, ModelCard] = {}
        self._asked: set[tuple[ModelId, str]] = set()

    def on_report(self, report: WorkerReport, now_ns: int) -> list[LoadTokenizer]:
        """A worker lives. Reports that were overtaken by a later one are dropped."""
        seen = self._seen.get(report.worker_id)
        if (
            seen is not None
            and seen.report.incarnation == report.incarnation
            and report.seq <= seen.report.seq
        ):
            return []
        self._seen[report.worker_id] = _Seen(report, now_ns)
        effects = []
        for card in report.models:
            self._ever[card.model_id] = card
            if (key := (card.model_id, card.source)) not in self._asked:
                self._asked.add(key)
                effects.append(LoadTokenizer(card))
        return effects

    def on_load_failed(self, card: ModelCard) -> None:
        """Ask again at the next report: the files may be on their way."""
        self._asked.discard((card.model_id, card.source))

    def forget_dead(self, now_ns: int) -> None:
        """Drop workers that are gone, so that names that never come back do not pile up."""
        self._seen = {name: seen for name, seen in self._seen.items() if seen.alive(now_ns)}

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

    def was_seen(self, model_id: ModelId) -> bool:
        """Whether any worker ever served this model."""
        return model_id in self._ever

    def hosts(self, now_ns: int) -> set[HostId]:
        """Hosts with a live worker."""
        return {seen.report.host_id for seen in self._seen.values() if seen.alive(now_ns)}
