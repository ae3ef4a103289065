"""`symphony demo`: a chat and a team of agents with hints and without, on an own deployment."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import orjson
from rich.console import Console
from rich.live import Live

from cli.base.children import ROOT
from cli.base.reporting import err, out
from cli.base.runfile import DEFAULT_DATA_DIR
from loadtest.demo.deployment import counts_of, demo_deployment
from loadtest.demo.figures import hints_of, part_figures
from loadtest.demo.page import page
from loadtest.demo.screen import hints_line, screen, table_of
from loadtest.demo.script import PARTS, QUICK, TYPING_WPM, WHOLE, Model, Part, Side, Sizes
from loadtest.demo.seen import Seen
from loadtest.demo.verdicts import difference, no_gain, whole
from loadtest.deployment import Deployment
from shared.errors import ConfigError, SymphonyError

CLIENT = ROOT / "clients" / "python"
JSON, PAGE, LOGS = "demo.json", "demo.html", "logs"
REFRESHES_PER_S = 4.0
COUNTED_S = 1.0  # after a part, until the deployment has counted all that became of its hints
TITLES: dict[Part, str] = {
    "chat": "A chat: the first token of each answer",
    "team": "Teams of agents: the first token of each answer",
}
WHOLES: dict[Part, str] = {"chat": "A round of the chat", "team": "A team"}

Play = Callable[
    [str, str, Sizes, Random, Callable[[Seen], None]],
    Coroutine[Any, Any, Mapping[Side, list[float]]],
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What the command line says.

    Attributes:
        out_dir: for pictures, page and numbers.
    """

    out_dir: Path
    seed: int
    is_quick: bool

    @property
    def sizes(self) -> Sizes:
        return QUICK if self.is_quick else WHOLE


def default_out_dir() -> Path:
    """In the data folder, another one for each run."""
    return DEFAULT_DATA_DIR.expanduser() / "demos" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"


def run_demo(demo: Demo, *, is_shown: bool) -> dict[str, Any]:
    """Play both parts; everything in numbers, which is in the folder as well.

    Args:
        is_shown: on standard output; else what is said on the way goes to standard error.

    Raises:
        ConfigError: the folder cannot be written to.
        SymphonyError: a part failed; says which, and where the logs are.
    """
    _make(demo.out_dir)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # they end it as Ctrl-C does
    console, model, began_at = out if is_shown else err, Model(), time.monotonic()
    text = introduction(model, demo.sizes)
    for line in text:
        console.print(line)
    seen: list[Seen] = []
    parts: dict[Part, dict[str, Any]] = {}
    logs = demo.out_dir / LOGS
    with demo_deployment(model, logs) as deployment:
        console.print(f"\nThe deployment is up. Its dashboard: {deployment.url}/dashboard\n")
        for part in PARTS:
            try:
                parts[part] = _play(part, deployment, model, demo, seen, console)
            except SymphonyError as error:
                console.print()  # what is shown live has no line end without a terminal
                raise SymphonyError(f"the {part} failed: {error.message} (logs: {logs})") from None
    gain = no_gain(parts)
    console.print(f"{gain}\n")
    result = {
        "seed": demo.seed,
        "quick": demo.is_quick,
        "seconds": round(time.monotonic() - began_at, 1),
        "parts": parts,
        "no_gain": gain,
        "turns": [_turn(each) for each in seen],
    }
    _write(demo.out_dir, result, [*text, gain], seen)
    console.print(f"pictures and a page: {demo.out_dir / PAGE}")
    return result


def introduction(model: Model, sizes: Sizes) -> list[str]:
    """What is started, what to look at, and how sides are compared."""
    num, rates = sizes.document_tokens, _rates(model)
    takes = ", ".join(f"{model.move_s(num, rate):.2f} s from {place}" for place, rate in rates)
    return [
        "Symphony on a chat and on teams of agents: without hints, and with them.",
        "",
        "This starts a deployment of its own, two hosts with an emulated GPU each, and stops it."
        " Nothing is downloaded, and no other deployment is touched.",
        f"The GPUs take the time of {model.profile}. Each has room for {model.pool_tokens:,} tokens"
        f" of history, and its host's memory for {model.arena_tokens:,}; the rest is on disk. Pages"
        f" are {model.scale} times as small as the model's, and so are rates: seconds are those of "
        + ", ".join(f"{rate / 1e9:g} GB/s from {place}" for place, rate in rates)
        + f". {num:,} tokens take {takes}, and {model.compute_s(num):.2f} s to compute them again.",
        "Both sides say the same, on one deployment, round by round in turn, and share no history.",
    ]


def _rates(model: Model) -> list[tuple[str, float]]:
    return [
        ("host memory", model.bus_bytes_per_s),
        ("the other host", model.peer_bytes_per_s),
        ("disk", model.disk_read_bytes_per_s),
    ]


def _about(part: Part, sizes: Sizes) -> str:
    if part == "chat":
        return (
            f"1. A chat. {sizes.num_people} people ask about documents of theirs. They type"
            f" {TYPING_WPM * sizes.faster:g} words a minute; with hints, their page sends one with"
            " the first letter."
        )
    return (
        f"2. A team. Product manager, architect, engineer and QA hand their work to each other,"
        f" {sizes.num_teams} teams at once; two of them run tools of {sizes.tool_s:g} s. With"
        " hints, they announce who is next."
    )


def _play(
    part: Part,
    deployment: Deployment,
    model: Model,
    demo: Demo,
    seen: list[Seen],
    console: Console,
) -> dict[str, Any]:
    play, sizes, url = _player(part), demo.sizes, deployment.url
    console.print(_about(part, sizes), style="bold")
    before = counts_of(url)
    with Live(console=console, refresh_per_second=REFRESHES_PER_S) as live:

        def on_seen(turn: Seen) -> None:
            seen.append(turn)
            live.update(screen(seen, part, TITLES[part]))

        rng = Random(f"{demo.seed}/{part}")
        with asyncio.Runner() as runner:
            try:
                wholes_s = runner.run(play(url, model.name, sizes, rng, on_seen))
            except BaseException:
                deployment.stop()  # ends the streams: the runner waits for threads that read them
                raise
    time.sleep(COUNTED_S)
    figures = part_figures(seen, part, wholes_s, hints_of(before, counts_of(url)))
    figures["verdicts"] = [difference(figures), whole(figures, WHOLES[part])]
    console.print("", table_of(figures, ""), "", sep="\n")
    console.print(hints_line(figures["hints"]))
    for sentence in figures["verdicts"]:
        console.print(sentence, style="bold")
    console.print()
    return figures


def _player(part: Part) -> Play:
    if part == "chat":
        from loadtest.demo.chat import play_chat

        return play_chat
    # The client is a distribution of its own, which the environment need not have.
    sys.path += [str(CLIENT / "src"), str(CLIENT / "examples")]
    from loadtest.demo.team import play_team

    return play_team


def _turn(seen: Seen) -> dict[str, Any]:
    return {
        **seen.which._asdict(),
        "side": seen.side,
        "ttft_ms": round(seen.ttft_ms, 1),
        "prompt_tokens": seen.num_prompt,
        "history_tokens": seen.num_history,
        "cached": seen.cached,
        "lead_s": None if seen.lead_s is None else round(seen.lead_s, 2),
    }


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / JSON).touch()
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}") from None


def _write(folder: Path, result: dict[str, Any], text: list[str], seen: list[Seen]) -> None:
    from loadtest.demo.plots import draw

    drawn = {part: draw(seen, part, TITLES[part], folder) for part in PARTS}
    pictures = {part: path.read_bytes() for part, path in drawn.items() if path is not None}
    (folder / JSON).write_bytes(orjson.dumps(result) + b"\n")
    (folder / PAGE).write_text(
        page([each for each in text if each], result["parts"], TITLES, pictures)
    )
