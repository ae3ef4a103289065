"""A house with its crowd, and how to know that it is well again."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from cli.inspection.description import describe
from cli.inspection.snapshot import look
from cli.runfile import running_house
from loadtest.chaos.crowd import Crowd, make_bodies
from loadtest.chaos.judge import Toll
from loadtest.fuzz.house import House, open_house
from services.worker.demo_model import DEMO_MODEL_ID

HEAL_WITHIN_S = 120.0
POLL_S = 0.2
SETTLE_S = 3.0  # what comes late is seen, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Attributes:
    num_streams: at once, all the time.
    seed: of what is asked.
    undisturbed_s: how long they are watched before anything happens.
    """

    num_streams: int
    seed: int
    undisturbed_s: float


@contextmanager
def open_stage(num_workers: int, num_spares: int, *more: str) -> Iterator[House]:
    """A house of real workers, with spare schedulers."""
    sizes = ("--workers", str(num_workers), "--spares", str(num_spares))
    with open_house({}, *sizes, *more) as house:
        yield house


@dataclass(frozen=True, slots=True)
class Scene:
    """A house under streams.

    Attributes:
        undisturbed: what streams met before anything happened.
    """

    house: House
    crowd: Crowd
    undisturbed: Toll


async def wait_well(house: House, gone: Mapping[str, int]) -> bool:
    """Wait until every process is ready and reaches the others, and some time beyond; whether that
    came in time.

    Args:
        gone: processes that others must have replaced.
    """
    give_up_at = time.monotonic() + HEAL_WITHIN_S
    while time.monotonic() < give_up_at:
        if house.pids().items().isdisjoint(gone.items()) and await asyncio.to_thread(
            _is_well, house
        ):
            await asyncio.sleep(SETTLE_S)
            return True
        await asyncio.sleep(POLL_S)
    return False


@asynccontextmanager
async def open_scene(house: House, setting: Setting) -> AsyncIterator[Scene]:
    """Learn what every answer must be, let everybody stream, and watch that for some time.

    Raises:
        PeerUnavailable: the house does not serve well although nothing is disturbed.
    """
    crowd = Crowd(house, make_bodies(DEMO_MODEL_ID, setting.num_streams, setting.seed))
    say(f"{setting.num_streams} clients learn what they must hear")
    await crowd.learn()
    async with crowd.streaming():
        begun_at = time.monotonic()
        await asyncio.sleep(setting.undisturbed_s)
        undisturbed = await crowd.toll_since(begun_at)
        say(f"undisturbed: {in_words(undisturbed)}")
        yield Scene(house, crowd, undisturbed)


def _is_well(house: House) -> bool:
    run = running_house(house.directory)
    snapshot = look(run)
    if snapshot is None or snapshot.num_ready_workers() < run.num_workers:
        return False
    if snapshot.models_missing():
        return False
    return bool(describe(run, snapshot)["state"] == "ready")


def in_words(toll: Toll) -> str:
    """For people."""
    return (
        f"{toll.num_exact} exact, {toll.num_ties} ties, {toll.num_wrong} wrong, "
        f"{toll.num_broken} broken, {toll.num_refused} refused; longest gap {toll.gap_s:.2f} s, "
        f"longest wait for a first piece {toll.first_piece_s:.2f} s"
        + "".join(f"\n  {trouble}" for trouble in toll.troubles)
    )


def say(text: str) -> None:
    """For people."""
    print(text, file=sys.stderr, flush=True)
