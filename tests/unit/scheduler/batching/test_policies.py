"""Policies by name, and what each of them makes of the same jobs."""

from collections.abc import Hashable

import pytest

from services.scheduler.core.batching.batcher import WindowBatcher
from services.scheduler.core.batching.effects import Dispatch
from services.scheduler.core.batching.job import Delays
from services.scheduler.core.batching.rules import (
    RULES,
    make_rules,
    smallest_as_fast,
    staggered_size,
)
from services.scheduler.core.batching.windows import TimeoutWindow
from services.scheduler.policies import DEFAULT_POLICY, make_batcher
from shared.errors import ConfigError
from tests.unit.scheduler.batching.driver import Player, linear

MS = 1_000_000
SPEC = linear("m", 1 * MS, 5 * MS, slo_ns=12 * MS)
CENTRAL = ["steady", "deferred", "deferred-prefix", "eager", "timeout:4"]


class EagerBatcher(WindowBatcher):
    """Somebody's own. Counts nothing, but tells the delays that it was made with."""

    def __init__(self, delays: Delays) -> None:
        super().__init__(make_rules("eager"), delays)
        self._ctrl_ns = delays.ctrl_ns

    def num_ahead(self, key: Hashable, deadline_ns: int) -> int:
        return self._ctrl_ns


def make_lines(delays: Delays) -> None:
    raise ValueError("two\nlines")


def test_the_default_has_a_name_that_is_known() -> None:
    assert DEFAULT_POLICY in RULES


@pytest.mark.parametrize("name", ["", "lazy", "nexus"])
def test_an_unknown_policy_is_refused_with_the_names(name: str) -> None:
    for make in (make_batcher, make_rules):
        with pytest.raises(ConfigError, match=r"deferred, .*timeout:MS"):
            make(name)


@pytest.mark.parametrize("argument", ["", "soon", "-1", "nan", "inf"])
def test_a_timeout_that_is_no_duration_is_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match="write timeout:MS"):
        make_batcher(f"timeout:{argument}")


def test_any_other_policy_is_taken_by_its_import_path() -> None:
    path = f"{EagerBatcher.__module__}:{EagerBatcher.__name__}"
    batcher = make_batcher(path, Delays(ctrl_ns=3))
    assert isinstance(batcher, EagerBatcher)
    assert batcher.num_ahead("m", 0) == 3


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere.to_be:Found", "No module named 'nowhere'"),
        (":Found", "Empty module name"),
        (".policies:Found", "package"),
        ("shared.errors:Found", "no attribute 'Found'"),
        ("shared.errors:CLOSED", "no attribute 'CLOSED'"),
        ("shared.errors:__doc__", "not callable"),
        ("fractions:Fraction", "argument"),
        ("builtins:repr", "makes a str"),
        (f"{__name__}:make_lines", "two lines$"),
    ],
)
def test_a_path_that_leads_to_no_policy_is_refused_in_a_line(path: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        make_batcher(path)
    assert path in refused.value.message and "\n" not in refused.value.message


def test_timeouts_are_milliseconds() -> None:
    window, _ = make_rules("timeout:2.5")(SPEC, 1)
    assert window == TimeoutWindow(2_500_000)


def test_staggered_size_is_the_largest_that_meets_equation_1() -> None:
    """ResNet50 of Table 2: l(b) = 1.053 b + 5.072, 25 ms, 8 GPUs: (1 + 1/8) l(16) is 24.66 ms."""
    resnet = linear("r", 1_053_000, 5_072_000, slo_ns=25 * MS)
    assert staggered_size(resnet, 8) == 16
    assert staggered_size(SPEC, 3) == 4
    assert staggered_size(linear("m", MS, 5 * MS, slo_ns=7 * MS), 1) == 1


@pytest.mark.parametrize("num_gpus", [1, 3, 8])
def test_smallest_as_fast_gives_its_share_and_one_less_does_not(num_gpus: int) -> None:
    size = staggered_size(SPEC, num_gpus)
    for share in (0.5, 0.9, 1.0):
        wanted = share * size / SPEC.batch_ns[size]
        smallest = smallest_as_fast(SPEC, size, share)
        assert smallest / SPEC.batch_ns[smallest] >= wanted
        assert smallest == 1 or (smallest - 1) / SPEC.batch_ns[smallest - 1] < wanted


def first_batch(policy: str, num_jobs: int, gap_ns: int) -> Dispatch:
    """Of jobs that come at equal distances, with one idle GPU."""
    player = Player(make_batcher(policy))
    player.add_model(SPEC)
    player.add_gpu(0, ["m"])
    for number in range(num_jobs):
        player.advance(number * gap_ns)
        player.submit("m", SPEC.slo_ns)
    player.advance(100 * MS)
    return player.sent[0].batch


@pytest.mark.parametrize(
    ("policy", "starts_at_ms", "size"),
    [("eager", 0, 1), ("timeout:4", 4, 3), ("deferred", 3, 4), ("deferred-prefix", 3, 4)],
)
def test_first_batch_of_slow_arrivals(policy: str, starts_at_ms: int, size: int) -> None:
    """A job a millisecond. Deferred: with three the window opens at 12 - l(4) = 3, when the fourth
    comes along. After 4 ms three is all that 12 - 4 >= l(3) allows.
    """
    batch = first_batch(policy, num_jobs=10, gap_ns=MS)
    assert (batch.start_at_ns, len(batch.jobs)) == (starts_at_ms * MS, size)


@pytest.mark.parametrize("policy", CENTRAL)
def test_a_lone_job_is_done_in_time(policy: str) -> None:
    batch = first_batch(policy, num_jobs=1, gap_ns=0)
    assert batch.end_at_ns <= SPEC.slo_ns


@pytest.mark.parametrize("policy", CENTRAL)
def test_delays_are_allowed_for(policy: str) -> None:
    delays = Delays(ctrl_ns=MS, data_ns=MS // 10)
    player = Player(make_batcher(policy, delays), delays)
    player.add_model(SPEC)
    player.add_gpu(0, ["m"])
    for number in range(12):
        player.advance(number * MS)
        player.submit("m", SPEC.slo_ns)
    player.advance(100 * MS)
    for sent in player.sent:
        assert sent.batch.start_at_ns >= sent.at_ns + delays.of(len(sent.batch.jobs))
        assert sent.batch.end_at_ns <= sent.batch.jobs[0].deadline_ns
    assert len(player.ended) == 12
