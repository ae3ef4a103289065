"""docs/asyncapi.json is what the code says, and a document of AsyncAPI 3.0."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cli.base.children import ROOT
from cli.docs import asyncapi
from shared.ids import SessionId
from shared.wire import messages as m
from shared.wire import subjects
from shared.wire.messages import encode
from shared.wire.subjects import PUBLIC, NoReply, Subject

FILE = ROOT / "docs" / "asyncapi.json"
SCHEMA = Path(__file__).with_name("vendor") / "asyncapi-3.0.0.json"
DOCUMENT = asyncapi.document()


def references(value: Any) -> list[str]:
    """Every ``$ref`` in a document."""
    if isinstance(value, list):
        return [found for each in value for found in references(each)]
    if not isinstance(value, dict):
        return []
    here = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return here + [found for each in value.values() for found in references(each)]


def at(reference: str) -> Any:
    """What a reference names."""
    found: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def test_the_file_is_what_the_code_says() -> None:
    fresh = asyncapi.render()
    assert FILE.read_text() == fresh, "python -m cli.docs.asyncapi > docs/asyncapi.json"
    assert json.loads(fresh) == DOCUMENT


def test_it_is_asyncapi() -> None:
    faults = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).iter_errors(DOCUMENT)
    assert not [(list(fault.absolute_path), fault.message[:200]) for fault in faults]


def test_what_is_none_is_found() -> None:
    broken = json.loads(FILE.read_text())
    broken["operations"]["worker_start"]["action"] = "hear"
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))
    assert not validator.is_valid(broken)


def test_every_reference_leads_somewhere() -> None:
    found = references(DOCUMENT)
    assert len(found) > 300
    for reference in found:
        assert at(reference)


SUBJECTS = dict(asyncapi.declared())


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_subject_is_there_with_its_types(name: str) -> None:
    subject = SUBJECTS[name]
    operation, channel = DOCUMENT["operations"][name], DOCUMENT["channels"][name]
    assert channel["address"].count("{") == subject.pattern.count("*")
    assert list(channel["messages"]) == [subject.request.__name__]
    replies = operation.get("reply", {}).get("messages", [])
    names = [each["$ref"].rpartition("/")[2] for each in replies]
    assert names == ([] if subject.reply is NoReply else [subject.reply.__name__, "Refusal"])
    assert operation.get("bindings", {}).get("nats", {}).get("queue", "") == subject.queue


def test_public_subjects_are_told_apart() -> None:
    public = {
        channel["address"]
        for channel in DOCUMENT["channels"].values()
        if {"name": "public"} in channel.get("tags", [])
    }
    assert public == set(PUBLIC)


def test_what_is_sent_fits_its_schema() -> None:
    message = m.AdvisoryState(session_id=SessionId("s"), state="placed", why="x")
    schema = {**at("#/components/schemas/AdvisoryState"), "components": DOCUMENT["components"]}
    jsonschema.validate(json.loads(encode(message)), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"session_id": "s", "state": "lost"}, schema)


def test_a_changed_subject_is_another_document(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Subject("symphony.worker.*.begin", m.TurnsStart, NoReply)
    monkeypatch.setattr(subjects, "WORKER_START", other)
    assert asyncapi.document() != DOCUMENT
