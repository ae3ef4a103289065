"""The worked example of the deferred-batching paper, section 3.3: Figures 4 and 5, exactly.

Three GPUs, one model with l(b) = b + 5, target 12, a request R1, R2, ... every 0.75 time units.

Algorithm 1 as printed asks for ``G.free < exec`` and ``exec < G.free``; both being strict, a GPU
that becomes free at the very moment of a batch, as GPU 1 does for R13-R16 at 11.25, would never
take it. Figure 4 and the pseudo-code of appendix D (``free_at <= c.exec_at``) take it; so do we.
"""

import pytest

from services.scheduler.policies import make_batcher
from tests.unit.scheduler.batching.driver import Player, linear

UNIT_NS = 1_000_000
TARGET = 12
SPEC = linear("model", UNIT_NS, 5 * UNIT_NS, TARGET * UNIT_NS, size_max=7)
GAP_NS = 3 * UNIT_NS // 4

DEFERRED = ["deferred", "deferred-prefix", "steady"]  # alike as long as nothing must be dropped

BatchOf = tuple[float, int, list[int]]  # start, GPU from 1, first to last request


def arrival_ns(number: int) -> int:
    return (number - 1) * GAP_NS


def play(player: Player, numbers: list[int], until: float) -> None:
    """Requests of these numbers; at one instant a request is first and the end of a batch next."""
    for number in numbers:
        player.advance(arrival_ns(number))
        player.submit("model", TARGET * UNIT_NS, number)
    player.advance(int(until * UNIT_NS) + 1)


def batches(player: Player) -> list[BatchOf]:
    made = []
    for sent in player.sent:
        assert sent.at_ns == sent.batch.start_at_ns, "a network without delay"
        numbers = [job.ref for job in sent.batch.jobs]
        assert all(isinstance(number, int) for number in numbers)
        made.append((sent.at_ns / UNIT_NS, sent.batch.gpu + 1, numbers))
    return made  # type: ignore[return-value]


def three_gpus(policy: str) -> Player:
    player = Player(make_batcher(policy))
    player.add_model(SPEC)
    for gpu in range(3):
        player.add_gpu(gpu, ["model"])
    return player


def run_of(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


@pytest.mark.parametrize("policy", DEFERRED)
def test_figure_4_staggered_execution(policy: str) -> None:
    """Figure 4: a batch of four every 3 units, the GPUs in turn, the first at 2.25 when R4 comes:
    between its frontrun 12 - l(5) = 2 and its latest 12 - l(4) = 3.
    """
    player = three_gpus(policy)
    play(player, run_of(1, 60), until=44.25)
    assert batches(player) == [
        (2.25 + 3 * k, 1 + k % 3, run_of(4 * k + 1, 4 * k + 4)) for k in range(15)
    ]
    assert not player.dropped


@pytest.mark.parametrize("policy", DEFERRED)
def test_figure_5b_deferred_regains_the_pattern(policy: str) -> None:
    """R13-R15 are missing: GPU 1 idles from 11.25 to 13.5, then the pattern goes on, 2.25 units
    later than before; nothing is dropped.
    """
    player = three_gpus(policy)
    play(player, [n for n in run_of(1, 59) if n not in (13, 14, 15)], until=43.5)
    before = [(2.25 + 3 * k, 1 + k, run_of(4 * k + 1, 4 * k + 4)) for k in range(3)]
    after = [(13.5 + 3 * k, 1 + k % 3, run_of(4 * k + 16, 4 * k + 19)) for k in range(11)]
    assert batches(player) == before + after
    assert not player.dropped


def test_figure_5a_eager_deteriorates() -> None:
    """Eager from R16 on, out of the staggered state: GPUs become free at 11.25, 14.25 and 17.25.

    The text tells the batches up to 23.25 and the first three drops; the batches between follow
    from the rule: l(b) must fit between a GPU's free moment and the head's deadline.

    At 17.25 GPU 1 and GPU 3 end their batches together. The paper lets GPU 3 go on and GPU 1 take
    R25; here, as with every choice between free GPUs, it is the other way round (section 3.2).
    """
    player = Player(make_batcher("eager"))
    player.add_model(SPEC)
    for number in run_of(16, 42):
        player.advance(arrival_ns(number))
        player.submit("model", TARGET * UNIT_NS, number)
        if number in (16, 20, 24):  # at 11.25, 14.25 and 17.25
            player.add_gpu((number - 16) // 4, ["model"])
    player.advance(int(34.25 * UNIT_NS) + 1)
    assert batches(player) == [
        (11.25, 1, [16]),
        (14.25, 2, run_of(17, 20)),
        (17.25, 1, run_of(21, 24)),
        (18.0, 3, [25]),
        (23.25, 2, [26, 27]),
        (24.0, 3, run_of(28, 30)),
        (26.25, 1, run_of(31, 33)),
        (30.25, 2, [34]),
        (32.0, 3, [36]),
        (34.25, 1, [39]),
    ]
    assert [dropped.job.ref for dropped in player.dropped] == [35, 37, 38]


def test_figure_5a_two_of_seven_waiting() -> None:
    """At 23.25 seven requests wait, R26-R32; the batch is of two, for R26 is due at 30.75 and
    23.25 + l(2) = 30.25.
    """
    player = Player(make_batcher("eager"))
    player.add_model(SPEC)
    for number in run_of(26, 32):
        player.advance(arrival_ns(number))
        player.submit("model", TARGET * UNIT_NS, number)
    assert player.now_ns == 23.25 * UNIT_NS
    player.add_gpu(1, ["model"])
    assert player.jobs[0].deadline_ns == 30.75 * UNIT_NS
    assert batches(player) == [(23.25, 2, [26, 27])]
    assert player.sent[0].batch.end_at_ns == 30.25 * UNIT_NS
