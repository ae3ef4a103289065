"""Transcripts on disk."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.chat.conversation import Message
from cli.chat.transcript import DamagedTranscript, Transcript, Transcripts


def transcript(session_id: str = "fox", num_turns: int = 1, text: str = "hi") -> Transcript:
    messages = [
        message
        for turn in range(num_turns)
        for message in (Message("user", f"{turn} {text}"), Message("assistant", f"{turn} yes"))
    ]
    return Transcript(session_id=session_id, model="m", messages=messages)


def test_a_transcript_comes_back_and_is_its_owners_alone(tmp_path: Path) -> None:
    transcripts = Transcripts(tmp_path / "data" / "chats")
    assert transcripts.load("fox") is None
    transcripts.save(transcript(num_turns=3, text="\x1b ü \u2028"))
    assert transcripts.load("fox") == transcript(num_turns=3, text="\x1b ü \u2028")
    path = transcripts.path_of("fox")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]
    transcripts.remove("fox")
    transcripts.remove("fox")
    assert transcripts.load("fox") is None


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_session_has_a_file_of_its_own_in_the_folder(one: str, other: str) -> None:
    transcripts = Transcripts(Path("/chats"))
    assert os.path.normpath(transcripts.path_of(one)).startswith("/chats/")
    assert (transcripts.path_of(one) == transcripts.path_of(other)) == (one == other)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"session_id": "fox"}',
        '{"session_id": "x", "model": "m", "messages": []}',
        "9" * 999,
    ],
)
def test_a_damaged_transcript_is_named(tmp_path: Path, content: str) -> None:
    transcripts = Transcripts(tmp_path, file_bytes_max=500)
    transcripts.path_of("fox").write_text(content)
    with pytest.raises(DamagedTranscript, match=str(transcripts.path_of("fox"))):
        transcripts.load("fox")


def test_what_does_not_fit_loses_its_oldest_turns(tmp_path: Path) -> None:
    transcripts = Transcripts(tmp_path, file_bytes_max=2000)
    whole = transcript(num_turns=100)
    transcripts.save(whole)
    kept = transcripts.load("fox")
    assert kept is not None
    assert 0 < len(kept.messages) < 200 and kept.messages[0].role == "user"
    assert kept.messages == whole.messages[-len(kept.messages) :]
    transcripts.save(transcript(text="x" * 3000))
    assert transcripts.load("fox") == Transcript(session_id="fox", model="m", messages=[])


def test_the_oldest_transcripts_make_room(tmp_path: Path) -> None:
    transcripts = Transcripts(tmp_path, num_files_max=2)
    for number, session_id in enumerate(("a", "b", "c")):
        transcripts.save(transcript(session_id))
        os.utime(transcripts.path_of(session_id), (number, number))
    transcripts.save(transcript("a"))
    kept = [session_id for session_id in "abc" if transcripts.load(session_id)]
    assert kept == ["a", "c"]


def test_a_failed_save_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transcripts = Transcripts(tmp_path)
    transcripts.save(transcript())

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        transcripts.save(transcript(num_turns=2))
    assert transcripts.load("fox") == transcript()
    assert len(list(tmp_path.iterdir())) == 1
