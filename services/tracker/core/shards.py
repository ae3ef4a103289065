"""A divided tracker: which sessions and workflows are this shard's, and who is told of the others.

What a shard is sent by its number it takes, whatever it thinks of that itself. So what one hands on
goes no further, though two may disagree about how many there are.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from services.tracker.core.agent_turns import Foreseen
from services.tracker.core.effects import Pass
from shared.advisory_checks import check_advisory
from shared.errors import InvalidRequest
from shared.ids import TenantId
from shared.messages import ForeseenTurn, TurnArrived, TurnsForeseen
from shared.tracker_shards import shard_of

TURNS_MAX = 256  # far more than are foreseen of one turn


@dataclass(frozen=True, slots=True)
class Shards:
    """Attributes:
    num: among which the sessions and workflows of the house are divided.
    own: number of this one, from 0 on.
    """

    num: int = 1
    own: int = 0

    def other(self, tenant: TenantId, key: str) -> int | None:
        """Which other shard has a session, or a workflow, of this name; None: it is this one's."""
        shard = shard_of(tenant, key, self.num)
        return None if shard == self.own else shard

    def part_of(self, arrived: TurnArrived) -> TurnArrived | None:
        """What this shard has to do with a turn of which all are told; None: nothing."""
        tenant, agent = arrived.tenant, arrived.agent
        has_session = self.other(tenant, arrived.session_id) is None
        has_workflow = agent is not None and self.other(tenant, agent.workflow_id) is None
        if has_session:
            is_all = agent is None or has_workflow
            return arrived if is_all else replace(arrived, part="session")
        return replace(arrived, part="workflow") if has_workflow else None

    def divide(self, foreseen: Iterable[Foreseen]) -> tuple[list[Foreseen], list[Pass]]:
        """What this shard announces, and what it hands on to those who have the sessions.

        A session that nobody knows yet is its workflow's: who announces it hears when it comes.
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
        return own, [Pass(shard, TurnsForeseen(turns=turns)) for shard, turns in others.items()]


UNDIVIDED = Shards()


def check_foreseen(message: TurnsForeseen) -> None:
    """Refuse what no shard hands on.

    Raises:
        InvalidRequest: names the field at fault.
    """
    if len(message.turns) > TURNS_MAX:
        raise InvalidRequest(f"at most {TURNS_MAX} turns are foreseen at once", "turns")
    for each in message.turns:
        check_advisory(each.advisory)
        if not 0 <= each.chance <= 1:
            raise InvalidRequest("chance must be 0 to 1", "chance")


def handed_on(message: TurnsForeseen) -> list[Foreseen]:
    """What another shard foresees, to be announced by this one."""
    return [Foreseen(each.advisory, each.chance, is_handed_on=True) for each in message.turns]
