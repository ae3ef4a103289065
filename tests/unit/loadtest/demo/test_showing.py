"""The screen, the page and the pictures; what the deployment is started with."""

from pathlib import Path

import orjson
from rich.console import Console

from loadtest.demo.figures import part_figures
from loadtest.demo.page import page
from loadtest.demo.plots import draw
from loadtest.demo.screen import ROWS_MAX, cells_of, hints_line, rows_of, screen
from loadtest.demo.script import SIDES, Model
from loadtest.demo.seen import Seen, Which
from shared.profiles import load_profile

SEEN = [
    Seen(
        which=Which("chat", 0, who, number), side=side,
        ttft_ms=300.0 if side == "without" else 40.0,
        num_prompt=120, num_history=101 if number else 0,
        cached={"host" if side == "without" else "pool": 100} if number else {},
    )
    for number in range(6) for who in ("Ada", "Ben", "Cleo") for side in SIDES
]  # fmt: skip


def shown(seen: list[Seen], width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(screen(seen, "chat", "A chat"))
    return capture.get()


def test_the_newest_turns_stand_side_by_side() -> None:
    rows = rows_of(SEEN, "chat")
    assert len(rows) == ROWS_MAX
    assert [which.number for which, _ in rows] == sorted(which.number for which, _ in rows)
    assert all(sides.keys() == set(SIDES) for _, sides in rows)
    text = shown(SEEN)
    line = next(line for line in text.splitlines() if line.startswith("Ada, 6"))
    assert [word in line for word in ("300", "40", "host", "pool", "100")] == [True] * 5
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text, text


def test_a_turn_of_one_side_leaves_the_other_empty() -> None:
    assert "300" in shown([SEEN[6]]) and "40" not in shown([SEEN[6]])
    assert "A chat" in shown([])


def test_page_and_pictures_hold_all_of_it(tmp_path: Path) -> None:
    figures = part_figures(SEEN, "chat", {"without": [5.0], "with": [4.0]}, {})
    figures["verdicts"] = ["Hints & more."]
    path = draw(SEEN, "chat", "A chat", tmp_path)
    assert path is not None and path.read_bytes().startswith(b"\x89PNG")
    assert draw(SEEN, "team", "A team", tmp_path) is None
    text = page(
        ["Told <first>."], {"chat": figures}, {"chat": "A chat"}, {"chat": path.read_bytes()}
    )
    for part in ("Told &lt;first&gt;.", "Hints &amp; more.", "data:image/png;base64,", "300 ms"):
        assert part in text
    assert "http" not in text, "nothing is loaded from elsewhere"


def test_hints_are_shown_as_the_deployment_counts() -> None:
    hints = {"advisories": {"submitted": 3, "used": 2}, "by_house": {"given": 1}}
    shown = hints_line(hints)
    assert shown.endswith("3 submitted, 2 used; foreseen by the deployment itself: 1 given")
    assert hints_line({}).endswith("none")


def test_cells_are_of_both_sides() -> None:
    found = dict(cells_of(part_figures(SEEN, "chat", {}, {})))
    assert found["first token, p50"] == ["170 ms", "300 ms", "40 ms"]
    assert found["history next to the GPU"] == ["", "0 %", "99 %"]
    assert found["in host memory"] == ["", "99 %", "0 %"]


def test_its_profile_is_one_that_workers_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(orjson.dumps(Model().scaled))
    profile = load_profile(str(path))
    assert (profile.name, profile.kv_bytes_per_token) == (Model().name, 1024)
    assert profile.num_kv_tokens > Model().pool_tokens
