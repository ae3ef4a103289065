"""What schedulers that divide turns send each other, so that all of them see one load."""

from dataclasses import dataclass, field

from shared.ids import TurnId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTurn:
    """A turn that another scheduler has just sent to a worker.

    Attributes:
        num_tokens: of its prompt, that are likely to be computed.
    """

    turn_id: TurnId
    worker_id: WorkerId
    num_tokens: int = 0
    is_urgent: bool = False
    adapter_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsPlaced:
    """Scheduler to the others. Nothing depends on it: workers' reports say so within a second.

    Attributes:
        shard: the sender's.
        kept: workers that it keeps for one turn alone, or wants to; sent repeatedly.
    """

    shard: int
    turns: list[PlacedTurn] = field(default_factory=list)
    kept: list[WorkerId] = field(default_factory=list)
