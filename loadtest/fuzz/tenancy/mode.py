"""Attempts of one tenant on what is another's, over HTTP, NATS and Redis."""

import argparse
import asyncio
import random
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import nats
import orjson

from cli.start.credentials import services_nkey_file
from loadtest.deployment import MODEL, Deployment, deployed
from loadtest.fuzz.encoder import make_encoder
from loadtest.fuzz.report import Report
from loadtest.fuzz.streams import Streams
from loadtest.fuzz.tenancy.attempts import KINDS, OWN_JOB, PRIORITY_MAX, Raid
from loadtest.fuzz.tenancy.eavesdropping import Eavesdropper, watch
from loadtest.fuzz.tenancy.tenant import Tenant, key_of
from loadtest.fuzz.tenancy.victim import JOB, Lane, are_equal, make_lane, vector_of, work_on_nats
from loadtest.raw_http import ask, request_bytes
from shared.errors import InvalidRequest
from shared.ids import TenantId
from shared.runtime.settings import as_variables

VICTIM = TenantId("acme")
THIEF = TenantId("evil")
TENANTS = (VICTIM, THIEF, TenantId("default"))
STREAM_TOKENS = 48
STREAM_REQUEST_ID = "acme-stream"
ATTEMPT_MAX_S = 120.0
LAST_WORDS_S = 1.0  # for the last messages to arrive
LOOK_EVERY = 20  # attempts, at the deployment's processes
SKIPPED = {"files": "all of a deployment's files belong to one user"}


def add_options(parser: "argparse._ArgumentGroup") -> None:
    """Options of this mode."""
    parser.add_argument("--attempts", type=int, default=1000, help="in all (default 1000)")
    parser.add_argument("--lanes", type=int, default=4, help="at once (default 4)")
    parser.add_argument("--raids", default="", help="only these kinds, with commas between them")


@contextmanager
def deployment(args: argparse.Namespace) -> Iterator[Deployment]:
    """The deployment of this mode: with keys, and a model for turns and one for jobs.

    Raises:
        PeerUnavailable: it did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="symphony-tenants-") as name:
        keys = Path(name) / "keys.json"
        keys.write_bytes(orjson.dumps([_entry(who) for who in TENANTS]))
        settings = {
            "SYMPHONY_API_KEYS_FILE": str(keys),
            # Without limits, or most of the thief's advisories would be refused unread.
            **as_variables(
                {"oneshot_profile_s": "1", "hints_per_client": "0", "hints_per_tenant": "0"}
            ),
        }
        encoder = make_encoder(Path(name) / "encoder")
        options = ("--model", MODEL, "--model", str(encoder))
        with deployed(*options, settings=settings) as opened:
            yield opened


def _entry(tenant: TenantId) -> dict[str, Any]:
    limits = {"limits": {"priority": [0, PRIORITY_MAX]}} if tenant == THIEF else {}
    return {"key": key_of(tenant), "tenant": tenant, **limits}


async def run(deployment: Deployment, seed: int, args: argparse.Namespace) -> Report:
    """Let the victim work, the thief try, and see whether either got what it should not."""
    names = args.raids.split(",") if args.raids else list(KINDS)
    if unknown := set(names) - KINDS.keys():
        raise InvalidRequest(f"--raids: {', '.join(sorted(unknown))}: take of {', '.join(KINDS)}")
    report = Report(counts={"attempts": 0, "successes": 0}, notes={"skipped": SKIPPED})
    async with AsyncExitStack() as stack:
        models = await _models(deployment)
        victim, thief = [
            Tenant(
                name, deployment, await stack.enter_async_context(deployment.nats(name)), *models
            )
            for name in (VICTIM, THIEF)
        ]
        ears = Eavesdropper(
            await stack.enter_async_context(deployment.nats(THIEF)), THIEF, VICTIM, report
        )
        await ears.listen()
        await watch(await stack.enter_async_context(deployment.nats(VICTIM)), (">",), "", report)
        services = await nats.connect(
            deployment.run.nats_url,
            nkeys_seed=str(services_nkey_file(deployment.data_dir / "credentials")),
        )
        stack.push_async_callback(services.close)
        await watch(services, ("symphony.>", "_INBOX.>"), f"symphony.tenant.{THIEF}.", report)
        campaign = _Campaign(thief, ears, seed, report, names)
        await campaign.prepare(victim, args.lanes)
        await campaign.run(args.attempts)
        await asyncio.sleep(LAST_WORDS_S)
    return report


async def _models(deployment: Deployment) -> tuple[str, str]:
    request = request_bytes(
        "GET",
        "/v1/models",
        deployment.port,
        None,
        f"Authorization: Bearer {key_of(THIEF)}".encode(),
    )
    cards = orjson.loads((await ask(deployment.port, request)).body)["data"]
    ids = {card["task"]: card["id"] for card in cards}
    return ids["generate"], ids["embed"]


class _Campaign:
    """Makes attempts of seeded kinds, and looks after each at what the victim has."""

    def __init__(
        self, thief: Tenant, ears: Eavesdropper, seed: int, report: Report, names: list[str]
    ) -> None:
        self._thief = thief
        self._ears = ears
        self._seed = seed
        self._report = report
        self._names = names
        self._lanes: list[Lane] = []
        self._jobs: tuple[list[float], list[float]] = ([], [])
        self._pids = thief.deployment.pids()

    async def prepare(self, victim: Tenant, num_lanes: int) -> None:
        """Have the victim do what others could want, and both do what they are compared with."""
        self._lanes = [make_lane(victim, number) for number in range(num_lanes)]
        for lane in self._lanes:
            await lane.prepare()
            assert lane.known["advisory state"] == "placed", lane.known
            assert not await lane.resume()
        mine, theirs = await self._thief.embed(OWN_JOB), await victim.embed(JOB)
        self._jobs = vector_of(mine.body), vector_of(theirs.body)
        assert self._jobs[0] and not are_equal(*self._jobs), "two inputs have one vector"

    async def run(self, num_attempts: int) -> None:
        """All of them, beside what the victim does all the time."""
        numbers = iter(range(num_attempts))
        victim, thief = self._lanes[0].tenant, self._thief
        headers = (victim.authorization, f"X-Request-Id: {STREAM_REQUEST_ID}".encode())
        streams = Streams(thief.deployment.port, victim.model, 2, STREAM_TOKENS, headers=headers)
        undisturbed = await streams.run(lambda: True)
        raids = asyncio.gather(*(self._send(numbers, lane) for lane in self._lanes))
        beside, _, _ = await asyncio.gather(
            streams.run(raids.done),
            work_on_nats(victim, self._lanes[0], raids.done, self._report),
            raids,
        )
        for failure in (*undisturbed.failures, *beside.failures):
            self._report.expect(False, failure)
        self._report.count("victim_replies_http", beside.num_replies)
        self._report.count("victim_replies_failed", len(beside.failures))
        self._report.see("stream_gap_s", beside.gap_s)
        for lane in self._lanes:
            trouble = await lane.trouble() or await lane.resume()
            self._report.expect(not trouble, f"in the end, lane {lane.number}: {trouble}")
        self._look(num_attempts)

    async def _send(self, numbers: "Iterator[int]", lane: Lane) -> None:
        for number in numbers:
            rng = random.Random(f"{self._seed}:{number}")
            kind = rng.choice(self._names)
            ids = [STREAM_REQUEST_ID, lane.session_id]
            raid = Raid(number, rng, self._thief, lane, ids, self._jobs, self._ears)
            began_at = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(ATTEMPT_MAX_S):
                    got = await KINDS[kind](raid) or await lane.trouble()
            except (OSError, EOFError) as error:
                got = repr(error)
            self._report.see("attempt_s", asyncio.get_running_loop().time() - began_at)
            self._report.count("attempts")
            self._report.count(f"attempts_{kind}")
            if got:
                self._report.count("successes")
                self._report.expect(False, f"attempt {number}, {kind}: {got}")
            if number % LOOK_EVERY == 0:
                self._look(number)

    def _look(self, number: int) -> None:
        pids = self._thief.deployment.pids()
        self._report.expect(
            pids == self._pids, f"by attempt {number} processes ended: {self._pids} became {pids}"
        )
        self._pids = pids
