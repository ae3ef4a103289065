"""Conversations kept on this machine, one file each, for `chat --session ID` to go on with.

The server keeps tokens of a session, not its text: a history that is gone here is gone.
"""

import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cli.chat.conversation import Message
from shared.errors import SymphonyError

FILE_BYTES_MAX = 8 << 20
NUM_FILES_MAX = 1000


class DamagedTranscript(SymphonyError):
    """A file that is not what was written; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A conversation as it was after its last turn."""

    session_id: str
    model: str
    messages: list[Message]


_ADAPTER = TypeAdapter(Transcript)


class Transcripts:
    """The folder that holds them; made when the first is saved."""

    def __init__(
        self, folder: Path, file_bytes_max: int = FILE_BYTES_MAX, num_files_max: int = NUM_FILES_MAX
    ) -> None:
        assert file_bytes_max > 0 and num_files_max > 0
        self._folder = folder
        self._file_bytes_max = file_bytes_max
        self._num_files_max = num_files_max

    def path_of(self, session_id: str) -> Path:
        """Its file: ids may hold any characters, so the name is a hash."""
        return self._folder / f"{hashlib.sha256(session_id.encode()).hexdigest()[:32]}.json"

    def load(self, session_id: str) -> Transcript | None:
        """The session's transcript, or None when there is none here.

        Raises:
            DamagedTranscript: its file cannot be read.
        """
        path = self.path_of(session_id)
        try:
            if path.stat().st_size > self._file_bytes_max:
                raise DamagedTranscript(f"{path} is larger than any transcript")
            transcript = _ADAPTER.validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedTranscript(f"{path} cannot be read: {error.strerror}") from None
        except ValidationError:
            raise DamagedTranscript(f"{path} is damaged") from None
        if transcript.session_id != session_id:
            raise DamagedTranscript(f"{path} is of another session")
        return transcript

    def save(self, transcript: Transcript) -> None:
        """Replace the session's file; a reader sees the old one or the new one. What does not fit
        loses its oldest turns, and a new file the oldest others their place.

        Raises:
            OSError: the disk does not take it.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        path = self.path_of(transcript.session_id)
        is_new = not path.exists()
        number, beside = tempfile.mkstemp(dir=self._folder, prefix=f"{path.stem}.")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(self._fitting(transcript))
                file.flush()
                os.fsync(number)
            os.replace(beside, path)
        finally:
            Path(beside).unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):  # the next new one makes room
                self._make_room()

    def remove(self, session_id: str) -> None:
        """Forget a session; one that is not there is no error.

        Raises:
            OSError: it stays.
        """
        self.path_of(session_id).unlink(missing_ok=True)

    def _fitting(self, transcript: Transcript) -> bytes:
        while True:
            content = _ADAPTER.dump_json(transcript, indent=1) + b"\n"
            messages = transcript.messages
            if len(content) <= self._file_bytes_max or not messages:
                return content
            num_turns = max(1, len(messages) // 8)  # a quarter of them at once
            transcript = replace(transcript, messages=messages[2 * num_turns :])

    def _make_room(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: -self._num_files_max]:
            path.unlink(missing_ok=True)
