"""The connection to the kvstore: which answers count, what is said to be held."""

import pytest

from services.worker.core.effects import BlockWrite
from services.worker.core.kv.expecting import Expecting
from services.worker.core.kv.kv_link import KvLink
from services.worker.core.turns.intake import ModelShape, expected_turn
from shared.blocks import child_key, root_key
from shared.errors import MalformedMessage, NoCapacity, PeerUnavailable
from shared.ids import ModelId, SessionId, WorkerId
from shared.owners import NO_OWNER
from shared.wire.messages import KvLeased, KvRenew, KvStaged, Prefetch, pack_ints, unpack_ints

ROOT = root_key("f", "t")
KEY = child_key(ROOT, [1, 2])
STAGED = KvStaged(ticket=7, num_blocks=1, pages=pack_ints([3]), generations=pack_ints([1]))

SHAPE = ModelShape(fingerprint="f", num_layers=1, block_tokens=2, vocab_size=9, lora=None)


def opened() -> KvLink:
    link = KvLink(WorkerId("w"), "f", num_layers=1, page_bytes=64)
    link.on_opened("i1", 10)
    return link


def held(renew: KvRenew) -> tuple[list[int], list[int], int]:
    return unpack_ints(renew.tickets, "Q"), unpack_ints(renew.leased), renew.heard


def test_what_was_given_is_named_until_it_is_given_back() -> None:
    link = opened()
    assert link.lease(2).number == 1
    assert link.on_leased(KvLeased(pages=pack_ints([4, 5])), link.epoch) == [4, 5]
    staged = link.on_staged(STAGED, [KEY], link.epoch)
    assert staged is not None and (staged.ticket, staged.epoch) == (7, link.epoch)
    assert held(link.renew([])) == ([7], [4, 5], 1)
    assert link.release(ticket=7, num_kept=1).num_kept == 1
    assert held(link.renew([])) == ([7], [4, 5], 1), "a part of the stage is still held"
    commit = link.commit([BlockWrite(1, KEY, ROOT, [1, 2], [0], [4], NO_OWNER)], [[9]])
    assert held(link.renew([])) == ([7], [5], 1)
    release = link.release(ticket=7, pages=[5])
    assert held(link.renew([])) == ([], [], 1)
    assert (commit.seq, release.seq) == (2, 3) and commit.incarnation == "i1"


def test_an_announced_turn_s_question_follows_its_advisory() -> None:
    now_ns = 5
    prefetch = Prefetch(session_id=SessionId("s"), model_id=ModelId("m"), trace="x")
    expected = expected_turn(prefetch, SHAPE, now_ns)
    stage = opened().stage_session(Expecting().ask(expected))
    assert (stage.session_id, stage.is_hint, stage.trace) == ("s", True, "x")


def test_a_lease_counts_as_heard_when_its_answer_is_here() -> None:
    link = opened()
    assert [link.lease(1).number, held(link.renew([]))[2]] == [1, 0]
    link.on_leased(KvLeased(), link.epoch)
    assert [link.lease(1).number, held(link.renew([]))[2]] == [2, 1]


def test_answers_of_an_earlier_connection_do_not_count() -> None:
    link = opened()
    link.lease(1)
    earlier = link.epoch
    link.on_opened("i2", 10)
    assert link.on_leased(KvLeased(pages=pack_ints([4])), earlier) is None
    assert link.on_staged(STAGED, [KEY], earlier) is None
    assert held(link.renew([])) == ([], [], 0)


def test_a_call_that_fails_ends_its_own_connection_once() -> None:
    link = opened()
    assert not link.on_error(NoCapacity("no room"), link.epoch) and link.is_open
    assert link.on_error(PeerUnavailable("silence"), link.epoch) and not link.is_open
    assert not link.on_error(PeerUnavailable("silence"), link.epoch)
    earlier = link.epoch
    link.on_opened("i2", 10)
    assert not link.on_error(PeerUnavailable("silence"), earlier) and link.is_open


def test_pages_beyond_the_arena_are_refused() -> None:
    link = opened()
    with pytest.raises(MalformedMessage):
        link.on_leased(KvLeased(pages=pack_ints([10])), link.epoch)
    assert held(link.renew([]))[1] == []
