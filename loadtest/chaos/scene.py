"""A deployment with its crowd, and how to know that it is well again."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from cli.inspection.description import describe
from cli.inspection.snapshot import look
from loadtest.chaos.adapters import NONE, Wanted, offered
from loadtest.chaos.crowd import MIXED, SHORT, USUAL, Crowd, Lengths, make_bodies
from loadtest.chaos.helpers import are_all_ready
from loadtest.chaos.judge import Toll
from loadtest.chaos.watch import Watch, free_ports
from loadtest.deployment import Deployment, deployed
from services.worker.models.demo_model import DEMO_MODEL_ID

HEAL_WITHIN_S = 120.0
POLL_S = 0.2
SETTLE_S = 3.0  # what comes late is seen, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Attributes:
    num_streams: at once, all the time.
    seed: of what is asked.
    undisturbed_s: how long they are watched before anything happens.
    adapters: that they run on, and on the base, in turn.
    """

    num_streams: int
    seed: int
    undisturbed_s: float
    adapters: Wanted = NONE

    @property
    def models(self) -> list[str]:
        """That streams run on in turn."""
        return [DEMO_MODEL_ID, *self.adapters.names]

    @property
    def lengths(self) -> Lengths:
        """Of prompts: helpers take short ones."""
        if self.adapters.has_helpers:
            return SHORT
        return MIXED if self.adapters.num else USUAL


@dataclass(frozen=True, slots=True)
class Stage:
    """A deployment that is ready.

    Attributes:
        watch: what its workers count of adapters.
        has_helpers: its workers have processes that assist.
        load_s: that streams may wait for adapters.
    """

    deployment: Deployment
    watch: Watch = field(default_factory=Watch)
    has_helpers: bool = False
    load_s: float = 0.0


@contextmanager
def open_stage(num_workers: int, num_spares: int, setting: Setting, *more: str) -> Iterator[Stage]:
    """A deployment of real workers, with spare schedulers, and adapters if there are to be some.

    Raises:
        PeerUnavailable: it did not come up.
    """
    sizes = ("--workers", str(num_workers), "--spares", str(num_spares))
    wanted = setting.adapters
    with offered(wanted, setting.num_streams, setting.lengths.turn_tokens) as offer:
        ports = free_ports(num_workers) if wanted.num else range(0)
        metrics = {"SYMPHONY_METRICS_PORT": str(ports[0])} if ports else {}
        options, settings = (*sizes, *offer.options, *more), {**offer.settings, **metrics}
        with deployed(*options, settings=settings) as deployment:
            yield Stage(deployment, Watch(ports), wanted.has_helpers, offer.load_s)


@dataclass(frozen=True, slots=True)
class Scene:
    """A deployment under streams.

    Attributes:
        undisturbed: what streams met before anything happened.
    """

    stage: Stage
    crowd: Crowd
    undisturbed: Toll


async def wait_well(stage: Stage, gone: Mapping[str, int]) -> bool:
    """Wait until every process is ready and reaches the others, and some time beyond; whether that
    came in time.

    Args:
        gone: processes that others must have replaced.
    """
    give_up_at = time.monotonic() + HEAL_WITHIN_S
    while time.monotonic() < give_up_at:
        if stage.deployment.pids().items().isdisjoint(gone.items()) and await asyncio.to_thread(
            _is_well, stage
        ):
            await asyncio.sleep(SETTLE_S)
            return True
        await asyncio.sleep(POLL_S)
    return False


@asynccontextmanager
async def open_scene(stage: Stage, setting: Setting) -> AsyncIterator[Scene]:
    """Learn what every answer must be, let everybody stream, and watch that for some time.

    Raises:
        PeerUnavailable: the deployment does not serve well although nothing is disturbed, or an
            adapter changes nothing.
    """
    bodies = make_bodies(setting.models, setting.num_streams, setting.seed, setting.lengths)
    crowd = Crowd(stage.deployment.port, bodies)
    say(f"{setting.num_streams} clients learn what they must be answered")
    await crowd.tell_apart(setting.models)
    await crowd.learn()
    async with stage.watch.watching(), crowd.streaming():
        begun_at = time.monotonic()
        await asyncio.sleep(setting.undisturbed_s)
        undisturbed = await crowd.toll_since(begun_at)
        say(f"undisturbed: {in_words(undisturbed)}")
        yield Scene(stage, crowd, undisturbed)


def _is_well(stage: Stage) -> bool:
    run = stage.deployment.run
    snapshot = look(run)
    if snapshot is None or snapshot.num_ready_workers() < run.num_workers:
        return False
    if snapshot.models_missing():
        return False
    if stage.has_helpers and not are_all_ready(stage.deployment):
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
