"""Texts of a wanted length, dialogues of the traces, and every trace file as a load."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.trace_files import FILES, NOT_HERE
from loadtest.users.replay import REPLAYS, replay, why_absent
from loadtest.users.texts import (
    DIALOGUES,
    Texts,
    calibrate,
    chats,
    dialogues,
    drawn,
    heavy,
    made_up,
)
from loadtest.workloads.traces import TRACES, path_of
from shared.errors import InvalidRequest

HOUR_NS = 3600 * 10**9
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="no ../shared/traces")


@settings(deadline=None)
@given(st.text("abc/", min_size=1), st.integers(1, 500), st.integers(1, 500))
def test_of_one_name_a_text_is_the_beginning_of_a_longer_one(name: str, one: int, two: int) -> None:
    texts = Texts(3.5)
    short, long = sorted((texts.fill(name, one), texts.fill(name, two)), key=len)
    assert long.startswith(short)
    assert len(short) == round(min(one, two) * 3.5)
    assert texts.fill(name + "x", 40)[:20] != texts.fill(name, 40)[:20]


def test_the_length_is_what_the_model_counts() -> None:
    texts = calibrate(lambda text: len(text.split()))
    assert len(texts.fill("fox", 1000).split()) == pytest.approx(1000, rel=0.02)


def test_it_works_without_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.users.texts.CHATS", ())
    found = chats()
    assert found == made_up()
    assert all(said.text and said.num_words > 0 for each in found for said in each)
    assert all(1 <= said.num_answer <= 1001 for each in found for said in each)


def test_a_document_goes_along_and_is_not_typed() -> None:
    talk, texts = made_up(3), Texts(1.0)
    plain = next(drawn(talk, Random(1)))
    laden = next(heavy(drawn(talk, Random(1)), texts, 700, 9, Random(2)))
    assert [said.num_words for said in laden] == [said.num_words for said in plain]
    for one, other in zip(plain, laden, strict=True):
        assert other.text.startswith(one.text)
        assert len(other.text) == len(one.text) + 2 + 700
        assert other.num_answer == 9


@needs_traces
def test_every_trace_file_is_replayed_or_said_to_be_no_load() -> None:
    listed = {file.path for file in FILES}
    assert len(listed) == len(FILES)
    there = {str(path.relative_to(TRACES)) for path in TRACES.rglob("*") if path.is_file()}
    assert there - listed == {"README.md"}
    for file in FILES:
        assert bool(file.replays) != bool(file.why), file.path
        assert file.licence and file.source
        assert all(name in REPLAYS or name in DIALOGUES for name in file.replays), file.path
    reached = {name for file in FILES for name in file.replays}
    assert reached == {*REPLAYS, *DIALOGUES}
    assert all(NOT_HERE.values())


@needs_traces
@pytest.mark.parametrize("name", REPLAYS)
def test_a_trace_becomes_scripts(name: str) -> None:
    scripts = replay(name, 16, HOUR_NS, seed=3)
    assert scripts
    for script in scripts:
        assert script.turns and script.begins_ns >= 0
        for number, turn in enumerate(script.turns):
            assert turn.num_output >= 1 and turn.wait_ns >= 0
            assert sum(part.num_tokens for part in turn.parts) >= 1
            assert all(before < number for before in turn.after)
    assert replay(name, 16, HOUR_NS, seed=3) == scripts


@needs_traces
@pytest.mark.parametrize("name", DIALOGUES)
def test_a_trace_of_texts_becomes_dialogues(name: str) -> None:
    found = dialogues(name)
    assert len(found) >= 80
    assert all(each for each in found)
    assert all(said.text and 1 <= said.num_answer <= 1024 for each in found for said in each)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(InvalidRequest, match="unknown: use one of"):
        replay("nonsense", 1, HOUR_NS, 0)


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.users.replay.path_of", lambda name: path_of("nowhere") / name)
    assert why_absent("oasst_zh_689") == "not in ../shared/traces: text/oasst_zh_689.jsonl.gz"
    assert why_absent("lmsys").startswith("not in ../shared/traces: lora/")
