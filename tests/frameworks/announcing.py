"""What tests of the client's plug-ins look at: turns and hints that a fake frontend got."""

import time
from typing import Any

from tests.clients.fake_frontend import FakeFrontend

PATIENCE_S = 20.0


def wait_for_hint(frontend: FakeFrontend, session_id: str) -> str:
    """What a tool does here: it is done when the frontend has heard of the session's next turn."""
    turn, hint = f"turn {session_id}", f"hint {session_id}"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = frontend.told()
        later = told[::-1][: told[::-1].index(turn)] if turn in told else told
        if hint in later:
            return "it rains"
        assert time.monotonic() < deadline, told
        time.sleep(0.005)


def turns(frontend: FakeFrontend) -> list[dict[str, Any]]:
    """What the model was asked."""
    return [one.body for one in frontend.asked if not one.is_hint]


def check_turns(frontend: FakeFrontend, *sessions: str) -> None:
    """These turns came, each with its names."""
    assert [body.get("session_id") for body in turns(frontend)] == list(sessions)
    for body in turns(frontend):
        name = body["session_id"].removeprefix("w/")
        assert (body["agent"], body["workflow_id"]) == (f"shop/{name}", "w")


def check_hinted(frontend: FakeFrontend) -> None:
    """The writer's second turn was announced after its first. That one may have been too, if the
    framework took its time.
    """
    told = frontend.told()
    first = told.index("turn w/writer")
    second = told.index("turn w/writer", first + 1)
    assert "hint w/writer" in told[first:second]
