"""A shard's connection to the rank process."""

from collections.abc import Collection, Hashable, Sequence

from services.scheduler.core.batching.candidates import ExecutionCandidate
from services.scheduler.core.batching.effects import Effect
from services.scheduler.core.batching.job import NEVER_NS, Delays
from services.scheduler.core.batching.rank import Grant
from services.scheduler.core.batching.rules import MakeRules
from services.scheduler.core.batching.shard import ModelShard
from services.scheduler.core.jobs.effects import JobsEffect, SendBooked, SendOffer
from services.scheduler.core.jobs.records import ModelKey
from shared.wire.messages import RankBooked, RankOffer


class RemoteRank:
    """Proxy of the rank table in another process: sends offers; grants arrive later.

    Args:
        first_seq: first number of the offers; must grow from one process of this shard to the next.
    """

    wake_at_ns = NEVER_NS

    def __init__(self, shard: int, first_seq: int) -> None:
        self.out: list[JobsEffect] = []
        self.now_ns = 0  # of the current event
        self._shard = shard
        self._seq = first_seq
        self._granted: dict[int, int] = {}  # grant by GPU

    def expect(self, gpu: int, grant_id: int, now_ns: int) -> None:
        """Record a grant that is about to be passed to the shard."""
        self.now_ns = now_ns
        self._granted[gpu] = grant_id

    def offer(self, candidate: ExecutionCandidate, now_ns: int) -> Grant | None:
        latest_in_ns = max(candidate.latest_at_ns - now_ns, 0)
        self._send_offer(candidate.model, latest_in_ns, candidate.delay_ns)
        return None

    def withdraw(self, model: Hashable) -> None:
        self._send_offer(model, None, 0)

    def give_back(self, grant: Grant) -> None:
        self.out.append(SendBooked(RankBooked(grant_id=self._granted.pop(grant.gpu))))

    def book(self, gpu: int, end_at_ns: int) -> None:
        end_in_ns = max(end_at_ns - self.now_ns, 0)
        booked = RankBooked(grant_id=self._granted.pop(gpu), end_in_ns=end_in_ns)
        self.out.append(SendBooked(booked))

    def on_batch_done(self, gpu: int, now_ns: int) -> None:
        """The rank process receives this message itself."""

    def match(self, now_ns: int) -> Grant | None:
        return None

    def _send_offer(self, model: Hashable, latest_in_ns: int | None, delay_ns: int) -> None:
        assert isinstance(model, ModelKey)
        self._seq += 1
        offer = RankOffer(
            shard=self._shard,
            model_id=model.model_id,
            fingerprint=model.fingerprint,
            variant=model.variant,
            seq=self._seq,
            latest_in_ns=latest_in_ns,
            delay_ns=delay_ns,
        )
        self.out.append(SendOffer(offer))


class RemoteBatcher(ModelShard):
    """A `Batcher` whose rank table is another process."""

    def __init__(self, rank: RemoteRank, make_rules: MakeRules, delays: Delays) -> None:
        super().__init__(rank, make_rules, delays)
        self.remote = rank
        self._models_of: dict[int, Collection[Hashable]] = {}

    def add_gpu(self, gpu: int, models: Collection[Hashable], now_ns: int) -> Sequence[Effect]:
        """Only counted here, since rules depend on the number of GPUs."""
        self._models_of[gpu] = models
        return self._count_gpus()

    def remove_gpu(self, gpu: int, now_ns: int) -> Sequence[Effect]:
        """Only counted here."""
        self._models_of.pop(gpu, None)
        return self._count_gpus()

    def on_refused(self, model: Hashable, now_ns: int) -> Sequence[Effect]:
        """A granted GPU cannot be used: offer again."""
        queue = self._queues.get(model)
        if queue is not None:
            queue.is_offered = False
            self._refresh(queue, now_ns)
        return self._finish()

    def _count_gpus(self) -> Sequence[Effect]:
        for key in self._queues:
            self.set_num_gpus(key, sum(key in models for models in self._models_of.values()))
        return ()
