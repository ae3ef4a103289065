"""How turns may end where there was no worker for a while."""

import pytest

from loadtest.sim.services.faults import Faults
from loadtest.sim.services.ledger import ClientTurn, Session
from loadtest.sim.timeline import SECOND
from loadtest.world.run import SAMPLE_NS, _Watch
from loadtest.world.world import Options, World
from shared.ids import SessionId, TenantId
from shared.wire.messages import SamplingParams


def end_of_turn(end: str, unserved_ns: int, *, is_scattered: bool) -> None:
    """A world's only turn ends so, after so long without a worker.

    Raises:
        AssertionError: it may not.
    """
    worlds = (World(seed, Options(), Faults(frozenset(), [])) for seed in range(100))
    world = next(each for each in worlds if each.deployment.is_scattered == is_scattered)
    watch = _Watch(world)
    watch._unserved_at_ns = [*range(0, unserved_ns, SAMPLE_NS)]
    session = Session(SessionId("s"), TenantId("t"), [], 0)
    turn = ClientTurn(
        "t",
        session,
        [1],
        SamplingParams(max_tokens=1),
        0,
        0,
        0,
        end=end,
        ended_at_ns=unserved_ns,
    )
    world.ledger.turns = {"t": turn}
    watch.check_ends()


@pytest.mark.parametrize(
    ("end", "unserved_s", "is_scattered", "is_allowed"),
    [
        ("stop", 0, False, True),
        ("internal", 60, False, False),
        ("no_worker", 6, False, True),
        ("no_worker", 3, False, False),
        ("worker_lost", 6, False, True),
        ("worker_lost", 3, False, False),  # workers report twice a second: after 8 s
        ("worker_lost", 3, True, True),
        ("worker_lost", 1, True, False),
        ("no_worker", 3, True, False),
    ],
)
def test_a_turn_may_be_lost_as_soon_as_as_many_reports_lack_it(
    end: str, unserved_s: int, *, is_scattered: bool, is_allowed: bool
) -> None:
    if is_allowed:
        end_of_turn(end, unserved_s * SECOND, is_scattered=is_scattered)
        return
    with pytest.raises(AssertionError, match=f"t ended as {end}"):
        end_of_turn(end, unserved_s * SECOND, is_scattered=is_scattered)
