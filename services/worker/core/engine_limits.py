"""Numbers that bound and steer one engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from shared.ids import HostId
from shared.locations import OBJECTS, is_objects

AdmissionName: TypeAlias = Literal["eager", "deferred"]
LoraStart: TypeAlias = Literal["auto", "wait", "stream", "assist"]
StoredDtype: TypeAlias = Literal["model", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What one step, one turn and one engine may take.

    Attributes:
        short_rope_max: see `ModelInfo`; 0: the KV of all sequences is of one kind.
        prefill_tokens_max: new prompt tokens in one step; longer prompts are cut into chunks.
        turns_running_max: turns in one step.
        turns_waiting_max: turns held beyond those; more are refused.
        steps_ahead_max: steps that are planned while another one runs, 0 or 1.
        stage_timeout_min_ns, stage_timeout_max_ns: how long a turn waits for the kvstore's answer
            before it recomputes, at least and at most.
        lease_target_blocks: arena room for this many blocks is kept at hand for new KV, and for
            more where steps compute more.
        prefill_admission: when waiting prompts join a step, see `admission`.
        layerwise: a pass may begin while later layers of a prompt's history are loading.
        slo_ttft_ns: target for the time to the first token of turns that bring none; 0: none.
        lora_start: how turns begin whose adapter is loading: when all of it is here (`wait`), or
            when its later layers will be here in time (`stream`), or at once, if helpers compute
            from the arena what is not here (`assist`), or by whichever of these is predicted to
            give the first token first (`auto`).
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
    layerwise: bool = True
    slo_ttft_ns: int = 0
    lora_start: LoraStart = "auto"
    short_rope_max: int = 0


@dataclass(slots=True)
class Estimates:
    """Measured speeds; they decide between fetching and recomputing, see `fetching`.

    Attributes:
        prefill_tokens_per_s: 0 until the first prefill.
        load_bytes_per_s: from the arena into the pool.
        source_bytes_per_s: from where the kvstore has it into the arena, as that measures it.
        peer_bytes_per_s: from other hosts into the arena, as far as that was measured.
    """

    prefill_tokens_per_s: float = 0.0
    load_bytes_per_s: float = 4e9
    source_bytes_per_s: float = 1e9
    peer_bytes_per_s: Mapping[HostId, float] = field(default_factory=dict)

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

    def on_source(self, bytes_per_s: float, of_peers: Mapping[HostId, float] | None = None) -> None:
        """How fast pages come into the arena lately, by the kvstore; 0: unknown. And perhaps how
        fast they come from other hosts."""
        if bytes_per_s > 0.0:
            self.source_bytes_per_s = bytes_per_s
        if of_peers is not None:
            self.peer_bytes_per_s = of_peers

    def load_ns(self, num_bytes: int) -> float:
        """What so many bytes take from the arena to the pool."""
        return num_bytes * 1e9 / self.load_bytes_per_s

    def source_ns(self, num_bytes: int) -> float:
        """What so many bytes take into the arena."""
        return num_bytes * 1e9 / self.source_bytes_per_s

    def slowest_ns(self, num_bytes: int, kv_at: Mapping[HostId, int]) -> int:
        """What so many bytes take from where they are slowest to get, to the pool.

        Args:
            kv_at: how many leading blocks are where: they come from the host with the most, or from
                the object store if that has more.
        """
        most = max(kv_at, key=lambda place: (kv_at[place], not is_objects(place)), default=None)
        if most is not None and is_objects(most):
            most = OBJECTS
        peer_bytes_per_s = 0.0 if most is None else self.peer_bytes_per_s.get(most, 0.0)
        peer_ns = num_bytes * 1e9 / peer_bytes_per_s if peer_bytes_per_s else 0.0
        return int(max(self.load_ns(num_bytes), self.source_ns(num_bytes), peer_ns))


def _mean(old: float, new: float, weight: float = 0.2) -> float:
    return new if old == 0.0 else old + weight * (new - old)
