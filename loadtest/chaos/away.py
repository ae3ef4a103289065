"""NATS really away for some time under streams (`--away nats`): not only killed, which the
deployment mends at once, and not stopped, which keeps connections open. The deployment stands on a
NATS of ours.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from cli.base.children import free_port, stop_child
from loadtest.chaos.scene import (
    SETTLE_S,
    Setting,
    Stage,
    in_words,
    open_scene,
    open_stage,
    say,
    wait_well,
)
from loadtest.fuzz.report import Report
from loadtest.servers import start_nats, wait_for_port


class Nats:
    """A server that keeps its port and its folder, whatever happens to it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self.url = f"nats://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """For the first time, or again."""
        self._child = start_nats(self._port, self._directory)
        wait_for_port(self._child, self._port, "nats")

    def kill(self) -> None:
        """As `kill -9` does."""
        self._child.kill()
        self._child.wait()

    def stop(self) -> None:
        """In good order."""
        stop_child(self._child)


def run(away_s: float, num_workers: int, num_spares: int, setting: Setting) -> dict[str, Any]:
    """Take NATS away once and see what that costs.

    Raises:
        PeerUnavailable: the deployment did not come up, or serves badly before anything is done.
    """
    with (
        _own_nats() as nats,
        open_stage(num_workers, num_spares, setting, "--nats-url", nats.url) as stage,
    ):
        return uvloop.run(_run(stage, nats, away_s, setting))


@contextmanager
def _own_nats() -> Iterator[Nats]:
    with tempfile.TemporaryDirectory(prefix="symphony-chaos-") as name:
        nats = Nats(Path(name))
        try:
            yield nats
        finally:
            nats.stop()


async def _run(stage: Stage, nats: Nats, away_s: float, setting: Setting) -> dict[str, Any]:
    deployment = stage.deployment
    report, before = Report(), deployment.pids()
    async with open_scene(stage, setting) as scene:
        begun_at = time.monotonic()
        nats.kill()
        say(f"NATS is away for {away_s:g} s")
        await asyncio.sleep(away_s)
        nats.start()
        is_well = await wait_well(stage, {})
        well_s = time.monotonic() - begun_at - away_s - SETTLE_S
        toll = await scene.crowd.toll_since(begun_at)
        undisturbed = scene.undisturbed.as_dict()
    say(f"{in_words(toll)}; well {well_s:.1f} s after NATS was back")
    ended = [name for name, pid in before.items() if deployment.pids().get(name) != pid]
    report.count("processes ended", len(ended))
    report.expect(is_well, "the deployment did not get well again")
    report.expect(not ended, f"processes ended: {', '.join(ended)}")
    report.expect(toll.num_exact > 0, "no stream came to its end")
    report.expect(not toll.num_wrong, f"{toll.num_wrong} streams were not as expected")
    report.expect(not toll.num_broken, f"{toll.num_broken} streams broke")
    report.expect(not toll.num_refused, f"{toll.num_refused} requests were refused")
    for name in ("exact", "ties", "wrong", "broken", "refused"):
        report.count(name, getattr(toll, f"num_{name}"))
    report.see("gap_s", toll.gap_s)
    report.see("first_piece_s", toll.first_piece_s)
    report.see("well_s", well_s)
    adapters = {"adapters": stage.watch.counts.as_dict()} if setting.adapters.num else {}
    return {**report.as_dict(), "undisturbed": undisturbed, **adapters}
