"""The table of wires."""

import pytest

from shared.wire import subjects
from shared.wire.subjects import INFERENCE_SUBMIT, KV_OPEN, SERVICE_STATUS, WORKER_START, Subject

TABLE = [value for value in vars(subjects).values() if isinstance(value, Subject)]


def test_stars_are_filled_in_order() -> None:
    assert KV_OPEN.name("host-1") == "symphony.kv.host-1.open"
    assert SERVICE_STATUS.name() == "symphony.service.status"


@pytest.mark.parametrize("wrong", ["", "a.b", "*", ">", "a b", "ä", "x" * 65])
def test_an_id_cannot_reach_into_other_subjects(wrong: str) -> None:
    with pytest.raises(ValueError, match="no valid id"):
        WORKER_START.name(wrong)


@pytest.mark.parametrize("ids", [(), ("a", "b")])
def test_each_star_takes_one_id(ids: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="takes 1 ids"):
        WORKER_START.name(*ids)


def test_every_wire_is_declared_once() -> None:
    patterns = [subject.pattern for subject in TABLE] + [INFERENCE_SUBMIT]
    assert len(set(patterns)) == len(patterns)
    assert all(pattern.startswith(("symphony.", "symphony-")) for pattern in patterns)


def test_no_two_patterns_can_name_the_same_subject() -> None:
    names = [subject.name(*["x"] * subject.pattern.count("*")) for subject in TABLE]
    assert len(set(names)) == len(names)
