"""Asking all hosts, where the location of a session's KV is unknown."""

from itertools import pairwise

import pytest

from services.kvstore.core import sample_of
from services.kvstore.core.base.backoff import RETRY_NS
from services.kvstore.core.loading.finding import QUESTIONS_PER_S, SAMPLE_MAX, Finding
from services.kvstore.core.loading.peers import ASKED_MAX, Peers
from shared.blocks import BlockKey
from shared.ids import HostId
from shared.locations import ANYWHERE

OWN, NEAR, FAR = HostId("own"), HostId("near"), HostId("far")
SECOND = 1_000_000_000


def test_all_are_asked_only_where_nobody_is_named() -> None:
    peers = Peers(OWN)
    assert peers.worth_asking({ANYWHERE: 9}, 3, 0) == [ANYWHERE]
    assert peers.worth_asking({ANYWHERE: 3}, 3, 0) == []
    assert peers.worth_asking({ANYWHERE: 9, FAR: 4}, 3, 0) == [FAR]
    peers.on_failed(FAR, 0)
    assert peers.worth_asking({ANYWHERE: 9, FAR: 4}, 3, RETRY_NS - 1) == [ANYWHERE]


@pytest.mark.parametrize("num_blocks", [*range(1, 20), 1000])
def test_what_is_asked_for_is_little_and_of_all_of_the_sequence(num_blocks: int) -> None:
    keys = [BlockKey(bytes([number % 256, number // 256] * 8)) for number in range(num_blocks)]
    sample = sample_of(keys)
    assert (sample[0], sample[-1]) == (keys[0], keys[-1])
    assert len(set(sample)) == len(sample) == min(num_blocks, SAMPLE_MAX)
    places = [keys.index(key) for key in sample]
    gaps = [after - before for before, after in pairwise(places)]
    assert places == sorted(places) and max(gaps, default=0) - min(gaps, default=0) <= 1


def test_those_with_most_of_the_sample_are_asked_for_all() -> None:
    finding = Finding(OWN)
    answers = [(OWN, 8), (NEAR, 3), (FAR, 5), (HostId("no"), 0), (HostId("liar"), -1)]
    assert finding.worth_asking(answers) == [FAR, NEAR]
    assert finding.worth_asking([(OWN, 8)]) == []
    many = [(HostId(f"h{number}"), number) for number in range(1, 9)]
    assert finding.worth_asking(many) == [HostId("h8"), HostId("h7")][:ASKED_MAX]


def test_who_has_all_but_the_last_of_the_sample_ends_the_wait() -> None:
    finding = Finding(OWN)
    assert finding.is_enough(FAR, 7, 8) and finding.is_enough(FAR, 8, 8)
    assert not finding.is_enough(FAR, 6, 8)
    assert not finding.is_enough(OWN, 8, 8), "what is here is known"


def test_a_house_that_asks_much_asks_no_more() -> None:
    """Others' questions count as much as this host's: each hears them all."""
    finding, now_ns, num_asked = Finding(OWN), 100 * SECOND, 0
    for _ in range(3 * QUESTIONS_PER_S):
        if finding.may_ask(now_ns):
            finding.on_question(now_ns)
            num_asked += 1
    assert QUESTIONS_PER_S <= num_asked <= 2 * QUESTIONS_PER_S
    assert not finding.may_ask(now_ns)
    assert finding.may_ask(now_ns + 2 * SECOND // QUESTIONS_PER_S)
