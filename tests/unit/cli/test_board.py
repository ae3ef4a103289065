"""A start says at once what changes, and something after each silence."""

import io

import pytest
from rich.console import Console

from cli.base.board import READY, REPEAT_S, REPEATED_MAX, Board, Step


class Screen:
    def __init__(self, *, is_terminal: bool) -> None:
        self.now_s = 0.0
        self.file = io.StringIO()
        console = Console(file=self.file, force_terminal=is_terminal, width=120, soft_wrap=True)
        self.board = Board(console, lambda: self.now_s)

    def lines(self) -> list[str]:
        """Since the last look."""
        lines = self.file.getvalue().splitlines()
        self.file.seek(0)
        self.file.truncate()
        return lines


def test_in_a_pipe_each_change_is_a_line_and_silence_is_broken() -> None:
    screen = Screen(is_terminal=False)
    screen.board.show([Step("worker-0"), Step("tracker")])
    assert screen.lines() == []
    screen.now_s = 1.0
    steps = [Step("worker-0", "loading m[1]", "1 of 9 MB"), Step("tracker", READY)]
    screen.board.show(steps)
    assert screen.lines() == [
        "symphony: worker-0: loading m[1], 1 of 9 MB (0 s)", "symphony: tracker: ready (1 s)",
    ]  # fmt: skip
    screen.now_s += REPEAT_S - 0.1
    screen.board.show([Step("worker-0", "loading m[1]", "2 of 9 MB"), steps[1]])
    assert screen.lines() == []  # a count alone is no change
    screen.now_s += 0.2
    screen.board.tick()
    assert screen.lines() == ["symphony: worker-0: loading m[1], 2 of 9 MB (4 s)"]
    screen.board.tick()
    assert screen.lines() == []
    waits = Step("frontend", "waiting", is_waiting=True)
    screen.board.show([Step("worker-0", "loading m[1]"), waits])
    assert screen.lines() == ["symphony: frontend: waiting (0 s)"]
    screen.now_s += REPEAT_S
    screen.board.tick()
    assert screen.lines() == ["symphony: worker-0: loading m[1] (8 s)"]
    screen.board.show([Step("worker-0", READY), waits])
    assert screen.lines() == ["symphony: worker-0: ready (9 s)"]
    screen.now_s += REPEAT_S
    screen.board.tick()
    assert screen.lines() == ["symphony: frontend: waiting (8 s)"]
    screen.board.show([Step("worker-0", READY), Step("frontend", READY)])
    assert screen.lines() == ["symphony: frontend: ready (8 s)"]
    screen.now_s += REPEAT_S
    screen.board.tick()
    assert screen.lines() == []  # all are ready


def test_many_processes_are_a_few_lines() -> None:
    screen = Screen(is_terminal=False)
    screen.board.show([Step(f"worker-{n}") for n in range(REPEATED_MAX + 3)])
    screen.now_s = REPEAT_S
    screen.board.tick()
    assert screen.lines()[REPEATED_MAX:] == ["symphony: and 3 more"]


@pytest.mark.parametrize("name", ["worker-0", "tracker"])
def test_a_terminal_shows_all_of_them_and_is_clean_at_the_end(name: str) -> None:
    screen = Screen(is_terminal=True)
    screen.board.show([Step("worker-0", "compiling kernels"), Step("tracker", READY)])
    assert name in screen.file.getvalue()
    screen.board.line("a notice")
    screen.board.close()
    assert screen.file.getvalue().rstrip().endswith("\x1b[2K")
