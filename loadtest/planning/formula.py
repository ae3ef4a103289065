"""What arithmetic says of a number of GPUs: where to begin looking, and below which not to look.

All of it is of means: `n` answers at a time make a pass take ``base + n k``, where `k` is what an
answer adds to a pass: its own row, the history it reads, and its share of prompts. The simulator
knows of waiting, of memory that is full and of uneven load, and so decides.
"""

from dataclasses import dataclass
from math import ceil, inf

from loadtest.cluster.measured import DISK_READ_BYTES_PER_S
from loadtest.cluster.plant import DRAM_SHARE, GIB
from loadtest.cluster.worker import TURNS_RUNNING_MAX
from loadtest.planning.demand import Demand
from loadtest.planning.machines import Machines
from loadtest.planning.targets import Targets
from shared.errors import InvalidRequest
from shared.profiles import LatencyProfile

EVEN = 0.75  # of a target, and of a disk, in the mean, where percentiles have to be met


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Attributes:
    gpus: that would do if load were a little uneven, with history that memory does not hold read
        from disks or computed, whichever takes fewer.
    gpus_least: that are needed for the work and the memory of answers alone.
    """

    gpus: int
    gpus_least: int


def estimate(
    profile: LatencyProfile, demand: Demand, targets: Targets, machines: Machines
) -> Estimate:
    """Of GPUs for `demand`; more users never get fewer.

    Raises:
        InvalidRequest: no number of these GPUs is enough.
    """
    _check_room(profile, demand)
    passes = _Passes.of(profile, demand)
    fastest_ms = profile.base_ms + passes.added_ms
    if fastest_ms > targets.tpot_ms:
        raise InvalidRequest(
            f"--tpot-ms {targets.tpot_ms:g}: an answer alone on a GPU takes {fastest_ms:.1f} ms a "
            "token",
            "tpot_ms",
        )
    goal_ms = max(EVEN * targets.tpot_ms, fastest_ms)
    even = passes.gpus(demand, goal_ms, passes.added_ms)
    computed_ms = profile.prefill_ms_per_token * demand.context / demand.reply_tokens
    all_computed = passes.gpus(demand, goal_ms, passes.added_ms + computed_ms)
    by_disks = _hosts_by_disks(profile, demand, machines) * machines.gpus
    gpus = max(ceil(max(even, min(all_computed, by_disks))), 1)
    return Estimate(gpus=gpus, gpus_least=min(max(ceil(passes.least(demand, targets)), 1), gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """What passes are in the mean.

    Attributes:
        base_ms: of any; `added_ms`: by each answer in it.
        rows_max: answers that the pool, or a pass, has room for.
        length: of an answer with its history.
        kv_tokens: in the pool.
    """

    base_ms: float
    added_ms: float
    rows_max: float
    length: float
    kv_tokens: int

    @classmethod
    def of(cls, profile: LatencyProfile, demand: Demand) -> "_Passes":
        length = demand.context + demand.reply_tokens / 2
        return cls(
            base_ms=profile.base_ms,
            added_ms=profile.decode_ms_per_turn
            + profile.context_ms_per_token * length
            + profile.prefill_ms_per_token * demand.new_tokens / demand.reply_tokens,
            rows_max=min(profile.num_kv_tokens / length, TURNS_RUNNING_MAX),
            length=length,
            kv_tokens=profile.num_kv_tokens,
        )

    def gpus(self, demand: Demand, token_ms: float, added_ms: float) -> float:
        """Of which each has as many answers as can be, at no more than so long a token; infinite if
        it cannot have one."""
        rows = self.rows_max
        if added_ms > 0:
            rows = min(rows, (token_ms - self.base_ms) / added_ms)
        if rows < 1:
            return inf
        return _answered_at_once(demand, self.base_ms + rows * added_ms) / rows

    def least(self, demand: Demand, targets: Targets) -> float:
        """For the memory of answers if a token took no more than the weights, and for the work
        behind them if it took all that it may."""
        memory = _answered_at_once(demand, self.base_ms) * self.length / self.kv_tokens
        work = _answered_at_once(demand, targets.tpot_ms) * self.added_ms / targets.tpot_ms
        return max(memory, work)


def _check_room(profile: LatencyProfile, demand: Demand) -> None:
    longest = demand.history_range[1] + 2 * demand.reply
    if profile.num_kv_tokens < longest:
        raise InvalidRequest(
            f"--context {demand.context}: sessions grow to {longest:,} tokens, and a GPU has room "
            f"for {profile.num_kv_tokens:,} beside the model",
            "context",
        )


def _answered_at_once(demand: Demand, token_ms: float) -> float:
    """People who are being answered, if a token takes so long: Little's law."""
    answer_s = demand.reply_tokens * token_ms / 1e3
    return demand.users * answer_s / (demand.think_s + answer_s)


def _hosts_by_disks(profile: LatencyProfile, demand: Demand, machines: Machines) -> float:
    """Whose disks can read what their memory does not hold, at the pace at which people ask."""
    token_bytes = profile.kv_bytes_per_token
    asked_bytes_per_s = demand.users / demand.think_s * demand.context * token_bytes
    arena_bytes = machines.dram_gb * GIB * DRAM_SHARE
    disk_bytes_per_s = EVEN * DISK_READ_BYTES_PER_S
    return asked_bytes_per_s / (disk_bytes_per_s + arena_bytes / demand.think_s)
