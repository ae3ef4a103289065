"""A sharded tracker: which sessions and workflows belong to this shard, and where the others' go.

A shard accepts every message that is addressed to its number, even for a session that is not its
own by its own count. So a forwarded message is never forwarded again, even if two shards are
configured with different numbers of shards.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from services.tracker.core.agent_turns import Foreseen
from services.tracker.core.effects import ForwardForeseen
from shared.errors import InvalidRequest
from shared.ids import TenantId
from shared.wire.advisory_checks import check_advisory
from shared.wire.messages import ForeseenTurn, TurnArrived, TurnsForeseen
from shared.wire.tracker_shards import shard_of

TURNS_MAX = 256  # far more than one turn leads to


@dataclass(frozen=True, slots=True)
class Shards:
    """Attributes:
    num: number of shards among which sessions and workflows are divided.
    own: number of this shard, from 0.
    """

    num: int = 1
    own: int = 0

    def other(self, tenant: TenantId, key: str) -> int | None:
        """The other shard that has a session, or workflow, of this name; None: this one has it."""
        shard = shard_of(tenant, key, self.num)
        return None if shard == self.own else shard

    def part_of(self, arrived: TurnArrived) -> TurnArrived | None:
        """The part of a turn, announced to all shards, that concerns this one; None: nothing."""
        tenant, agent = arrived.tenant, arrived.agent
        has_session = self.other(tenant, arrived.session_id) is None
        has_workflow = agent is not None and self.other(tenant, agent.workflow_id) is None
        if has_session:
            is_all = agent is None or has_workflow
            return arrived if is_all else replace(arrived, part="session")
        return replace(arrived, part="workflow") if has_workflow else None

    def divide(self, foreseen: Iterable[Foreseen]) -> tuple[list[Foreseen], list[ForwardForeseen]]:
        """Split foreseen turns into those that this shard announces and those to forward.

        A session that is not known yet belongs to its workflow's shard, which sees the turn arrive.
        """
        own: list[Foreseen] = []
        others: dict[int, list[ForeseenTurn]] = {}
        for each in foreseen:
            advisory = each.advisory
            shard = self.other(advisory.tenant, advisory.session_id)
            if shard is None or each.is_handed_on or each.prefix is not None:
                own.append(each)
            else:
                turn = ForeseenTurn(advisory=advisory, chance=each.chance)
                others.setdefault(shard, []).append(turn)
        forwarded = [
            ForwardForeseen(shard, TurnsForeseen(turns=turns)) for shard, turns in others.items()
        ]
        return own, forwarded


UNDIVIDED = Shards()


def check_foreseen(message: TurnsForeseen) -> None:
    """Validate forwarded turns.

    Raises:
        InvalidRequest: names the field at fault.
    """
    if len(message.turns) > TURNS_MAX:
        raise InvalidRequest(
            f"at most {TURNS_MAX} foreseen turns are allowed in one message", "turns"
        )
    for each in message.turns:
        check_advisory(each.advisory)
        if not 0 <= each.chance <= 1:
            raise InvalidRequest("chance must be 0 to 1", "chance")


def handed_on(message: TurnsForeseen) -> list[Foreseen]:
    """Turns that another shard foresees, to be announced by this one."""
    return [Foreseen(each.advisory, each.chance, is_handed_on=True) for each in message.turns]
