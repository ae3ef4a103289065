"""`symphony loadtest --profile open`: turns at a rate, and how many of them were in time."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import orjson

from cli.base.reporting import err
from loadtest.users.client import ApiError
from loadtest.users.life import Said
from loadtest.users.measures import Turn
from loadtest.users.open_loop import BAD_SHARE_MAX, Offer, OpenLoop, Search, Target, verdict
from loadtest.users.options import Options
from loadtest.users.report import JSON, MARKDOWN, write_report
from loadtest.users.stage import Stage
from shared.errors import PeerUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoad:
    """Attributes:
    rate: turns a second, or where a search begins.
    """

    options: Options
    folder: Path
    rate: float
    target: Target
    is_search: bool


def run_open(load: OpenLoad) -> dict[str, Any]:
    """Run it, once or at one rate after the other; returns the summary, which is written too.

    Raises:
        PeerUnavailable: no server answers.
    """
    try:
        stage = Stage(load.options, lambda turn: None)
    except ApiError as error:
        raise PeerUnavailable(str(error)) from None
    tried: list[dict[str, Any]] = []
    best: tuple[list[Turn], dict[str, Any]] | None = None
    if not load.is_search:
        best = _once(load, stage, load.rate)
        tried.append(best[1])
    else:
        search = Search(load.rate)
        while (rate := search.rate) is not None:
            turns, found = _once(load, stage, rate)
            is_good = found["bad_share"] <= BAD_SHARE_MAX
            tried.append(found)
            if is_good or best is None:
                best = turns, found
            search.on_result(is_good=is_good)
    assert best is not None, "a search tries one rate at least"
    turns, found = best
    target = load.target
    settings = load.options.as_dict() | {
        "rate": found["rate"], "slo_ttft_ms": target.ttft_ms, "slo_tpot_ms": target.tpot_ms,
    }  # fmt: skip
    summary = write_report(load.folder, turns, settings, load.options.duration_s)
    summary |= {"goodput": found, "tried": tried, "report": str(load.folder / MARKDOWN)}
    (load.folder / JSON).write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n")
    return summary


def _once(load: OpenLoad, stage: Stage, rate: float) -> tuple[list[Turn], dict[str, Any]]:
    options = load.options
    offer = Offer(
        rate=rate,
        seconds=options.duration_s,
        hints=options.hints,
        faster=options.faster,
        seed=options.seed,
    )
    loop = OpenLoop(
        options.url,
        stage.model,
        offer,
        _sayings(stage, stage.rng("open")),
        f"{time.time_ns() // 10**6:x}",
        api_key=options.api_key,
        cert=options.cert,
    )
    turns = asyncio.run(loop.run())
    found = verdict(turns, offer, load.target)
    err.print(
        f"[dim]{rate:.2f} turns/s: {found['goodput_turns_per_s']:g} in time, "
        f"{100 * found['bad_share']:.1f} % bad[/dim]"
    )
    return turns, found


def _sayings(stage: Stage, rng: Random) -> Callable[[], Said]:
    """Messages of one dialogue after the other."""
    found = (said for dialogue in stage.dialogues(rng) for said in dialogue)
    return lambda: next(found)
