"""Numbers that bound and steer one engine."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

AdmissionName: TypeAlias = Literal["eager", "deferred"]
LoraStart: TypeAlias = Literal["auto", "wait", "stream", "assist"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What one step, one turn and one engine may take.

    Attributes:
        prefill_tokens_max: new prompt tokens in one step; longer prompts are cut into chunks.
        turns_running_max: turns in one step.
        turns_waiting_max: turns held beyond those; more are refused.
        steps_ahead_max: steps that are planned while another one runs, 0 or 1.
        stage_timeout_min_ns, stage_timeout_max_ns: how long a turn waits for the kvstore's answer
            before it recomputes, at least and at most.
        lease_target_blocks: arena room for this many blocks is kept at hand for new KV, and for
            more where steps compute more.
        prefill_admission: when waiting prompts join a step, see `admission`.
        slo_ttft_ns: target for the time to the first token of turns that bring none; 0: none.
        lora_start: how turns begin whose adapter is on its way: when all of it is here (`wait`), or
            when its later layers will be here in time (`stream`), or at once, if helpers compute
            from the arena what is not here (`assist`).
    """

    max_model_len: int
    prefill_tokens_max: int = 512
    turns_running_max: int = 64
    turns_waiting_max: int = 4096
    steps_ahead_max: int = 1
    stage_timeout_min_ns: int = 100_000_000
    stage_timeout_max_ns: int = 2_000_000_000
    lease_target_blocks: int = 32
    prefill_admission: AdmissionName = "eager"
    slo_ttft_ns: int = 0
    lora_start: LoraStart = "auto"


@dataclass(slots=True)
class Estimates:
    """Measured speeds, as exponential means; they decide between fetching and recomputing.

    Attributes:
        prefill_tokens_per_s: 0 until the first prefill.
        load_bytes_per_s: from the arena into the pool.
        disk_bytes_per_s: from disk into the arena.
    """

    prefill_tokens_per_s: float = 0.0
    load_bytes_per_s: float = 4e9
    disk_bytes_per_s: float = 1e9

    def on_prefill(self, num_tokens: int, duration_ns: int) -> None:
        """A step that computed `num_tokens` prompt tokens."""
        if num_tokens >= 64 and duration_ns > 0:
            self.prefill_tokens_per_s = _mean(
                self.prefill_tokens_per_s, num_tokens * 1e9 / duration_ns
            )

    def on_load(self, num_bytes: int, duration_ns: int) -> None:
        """A run of loads that were ready in the arena."""
        if duration_ns > 0:
            self.load_bytes_per_s = _mean(self.load_bytes_per_s, num_bytes * 1e9 / duration_ns)

    def slowest_ns(self, num_bytes: int) -> int:
        """What so many bytes take from disk to the pool."""
        return int(num_bytes * 1e9 / min(self.load_bytes_per_s, self.disk_bytes_per_s))

    def is_fetch_worthwhile(self, num_tokens: int, num_bytes: int, disk_bytes: int) -> bool:
        """Whether bringing KV up beats computing its tokens again.

        Bytes over measured bandwidth against tokens over measured prefill speed; layers stream in
        behind the pass, so the slower of the two stages counts, not their sum.
        """
        if self.prefill_tokens_per_s == 0.0:
            return True
        fetch_s = max(num_bytes / self.load_bytes_per_s, disk_bytes / self.disk_bytes_per_s)
        return fetch_s < num_tokens / self.prefill_tokens_per_s


def _mean(old: float, new: float, weight: float = 0.2) -> float:
    return new if old == 0.0 else old + weight * (new - old)
