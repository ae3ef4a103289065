"""Who serves what, and what of a session's tokens can be extended."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.core.models.fleet import LEARNING_NS, NAMES_MAX, Fleet, LoadTokenizer
from services.frontend.core.sessions.prompt_reuse import extend_keys, unseen_text
from shared.blocks import chain_keys, root_key
from shared.ids import HostId, ModelId, WorkerId
from shared.wire.messages import ModelCard, WorkerReport
from shared.wire.sessions import TextMark

SECOND = 1_000_000_000
CARD = ModelCard(model_id=ModelId("m"), source="/m", fingerprint="f", max_model_len=9)
REPORT = WorkerReport(
    worker_id=WorkerId("w"), incarnation="a", seq=1, host_id=HostId("h"), state="ready",
    models=[CARD],
)  # fmt: skip


def test_a_silent_worker_takes_its_models_away() -> None:
    fleet = Fleet()
    assert fleet.on_report(REPORT, 0) == [LoadTokenizer(CARD)]
    assert fleet.on_report(replace(REPORT, seq=2), SECOND) == []
    assert fleet.card(ModelId("m"), 3 * SECOND) == CARD
    assert fleet.models(3 * SECOND) == {"m": CARD}
    assert fleet.holders(3 * SECOND) == ({"w"}, set())
    fleet.on_report(replace(REPORT, seq=3, has_kvstore=True), SECOND)
    assert fleet.holders(3 * SECOND) == ({"w"}, {"h"})
    assert fleet.card(ModelId("m"), 4 * SECOND) is None
    fleet.forget_dead(4 * SECOND)
    assert fleet.holders(0) == (set(), set())


def test_a_model_without_workers_is_remembered_for_a_while() -> None:
    fleet = Fleet()
    assert fleet.remembered(ModelId("m")) is None
    fleet.on_report(REPORT, SECOND)
    fleet.forget_dead(601 * SECOND)
    assert fleet.remembered(ModelId("m")) == CARD and fleet.models(601 * SECOND) == {}
    assert {files.source for files in fleet.files()} == {"/m"}
    fleet.forget_dead(602 * SECOND)
    assert fleet.remembered(ModelId("m")) is None and fleet.files() == set()
    assert fleet.knows(ModelId("m")) and not fleet.knows(ModelId("n"))
    many = [replace(CARD, model_id=ModelId(f"m{at}")) for at in range(NAMES_MAX)]
    fleet.on_report(replace(REPORT, incarnation="b", models=many), 602 * SECOND)
    assert fleet.knows(ModelId("m0")) and not fleet.knows(ModelId("m"))
    fleet.forget_dead(1300 * SECOND)
    assert fleet.on_report(replace(REPORT, seq=2), 603 * SECOND) == [LoadTokenizer(CARD)]


def test_overtaken_reports_and_loading_workers_do_not_count() -> None:
    fleet = Fleet()
    fleet.on_report(replace(REPORT, seq=5, state="draining"), 0)
    fleet.on_report(REPORT, 0)
    assert fleet.card(ModelId("m"), 0) is None
    assert fleet.holders(0) == ({"w"}, set())
    fleet.on_report(replace(REPORT, seq=6, state="loading"), 0)
    assert fleet.holders(0) == (set(), set())
    fleet.on_report(replace(REPORT, incarnation="b"), 0)
    assert fleet.card(ModelId("m"), 0) == CARD


def test_a_tokenizer_that_failed_is_asked_for_again() -> None:
    fleet = Fleet()
    fleet.on_report(REPORT, 0)
    fleet.on_load_failed(CARD)
    assert fleet.on_report(replace(REPORT, seq=2), 0) == [LoadTokenizer(CARD)]


def test_unseen_text() -> None:
    replies = [TextMark.of(" c "), TextMark.of("c")]
    assert unseen_text("ab c d", TextMark.of("ab"), replies) == "d"
    assert unseen_text("abc d", TextMark.of("ab"), replies) == " d"
    assert unseen_text("abX", TextMark.of("ab"), replies) is None
    assert unseen_text("abc", TextMark.of(""), [TextMark.of("abc")]) is None


@given(
    st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(0, 9), max_size=30),
    st.integers(1, 7),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_extended_keys_are_the_chain(before: list[int], after: list[int], block: int) -> None:
    root = root_key("m", "t")
    known = chain_keys(root, before, block)
    tokens = before + after
    assert extend_keys(root, known, tokens, block) == chain_keys(root, tokens, block)


def test_a_frontend_that_has_just_started_does_not_know_what_there_is() -> None:
    fleet = Fleet(started_at_ns=7)
    assert fleet.is_learning(7) and fleet.is_learning(6 + LEARNING_NS)
    assert not fleet.is_learning(7 + LEARNING_NS), "then there are no workers"
    fleet.on_report(REPORT, 8)
    assert not fleet.is_learning(9)
