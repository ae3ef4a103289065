"""A rank process that is told events by hand."""

from typing import TypeVar

from services.scheduler.core.jobs import JobLimits, JobsEffect, RankCore
from shared.effects import WakeAt
from shared.ids import ModelId, WorkerId
from shared.wire.messages import BatchRef, RankBooked, RankGrant, RankOffer
from tests.unit.scheduler.jobs.driver import LIMITS, MS, SECOND, Reports, batch_done

E = TypeVar("E")


class RankDriver:
    """A rank process, whose shards are the test."""

    def __init__(self, limits: JobLimits = LIMITS) -> None:
        self.now_ns = SECOND
        self.reports = Reports()
        self.effects: list[JobsEffect] = []
        self.alarm_at_ns = 1 << 62
        self.core = RankCore(limits, started_at_ns=self.now_ns)
        self._seq = 0

    def take(self, effects: list[JobsEffect]) -> None:
        for effect in effects:
            if isinstance(effect, WakeAt):
                self.alarm_at_ns = min(self.alarm_at_ns, effect.at_ns)
        self.effects += effects

    def wait(self, passed_ns: int) -> None:
        until_ns = self.now_ns + passed_ns
        while self.alarm_at_ns <= until_ns:
            self.now_ns = max(self.alarm_at_ns, self.now_ns)
            self.alarm_at_ns = 1 << 62
            self.take(self.core.on_wake(self.now_ns))
        self.now_ns = until_ns

    def report(self, worker: str, *batches: BatchRef, **more: object) -> None:
        report = self.reports.make(worker, *batches, **more)  # type: ignore[arg-type]
        self.take(self.core.on_report(report, self.now_ns))

    def gone(self, worker: str) -> None:
        self.take(self.core.on_worker_gone(WorkerId(worker), self.now_ns))

    def offer(
        self,
        model: str = "m",
        latest_in_ms: float | None = 20,
        *,
        shard: int = 0,
        seq: int | None = None,
    ) -> None:
        self._seq += 1
        offer = RankOffer(
            shard=shard,
            model_id=ModelId(model),
            fingerprint=model,
            variant=0,
            seq=self._seq if seq is None else seq,
            latest_in_ns=None if latest_in_ms is None else int(latest_in_ms * MS),
        )
        self.take(self.core.on_offer(offer, self.now_ns))

    def book(
        self, grant: RankGrant, end_in_ms: float | None = None, *, is_refused: bool = False
    ) -> None:
        booked = RankBooked(
            grant_id=grant.grant_id,
            end_in_ns=None if end_in_ms is None else int(end_in_ms * MS),
            is_refused=is_refused,
        )
        self.take(self.core.on_booked(booked, self.now_ns))

    def done(self, worker: str, batch_id: str = "b") -> None:
        self.take(self.core.on_batch_done(batch_done(worker, batch_id), self.now_ns))

    def pop(self, kind: type[E]) -> list[E]:
        found: list[E] = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found
