"""A tenant that has what others want: sessions, advisories, jobs, and text of its own.

Each lane holds one of each, so that attempts of several lanes do not disturb each other's checks.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadtest.fuzz.report import Report
from loadtest.fuzz.tenancy.tenant import Tenant, cached_tokens
from shared.blocks import BLOCK_TOKENS
from shared.wire.subjects import ADVISORY_GET

SECRET = "swordfish under the third stone"
NUM_BLOCKS = 4  # of a prompt: a character is a token of the demo model
ARRIVAL_S = 3600.0
PRIORITY = 3
JOB = "the and for are but not you all can her"
STREAM_TOKENS = 24
VECTOR_TOLERANCE = 1e-3  # jobs of one batch can differ in the last bits
KEPT = ("model", "num_tokens", "num_blocks", "num_turns", "last_used")
ADVISED = ("state", "tenant", "model_id", "priority", "num_merged")


def text_of(number: str) -> str:
    """A prompt that differs from every other one in its first block.

    >>> len(text_of("7"))
    261
    """
    begin = f"{number}: "
    rest = "the wolf was seen at the old mill, and no one dared to say so. " * (NUM_BLOCKS + 1)
    return (begin + rest)[: NUM_BLOCKS * BLOCK_TOKENS + 5]


@dataclass(slots=True)
class Lane:
    """Attributes:
    session_id: that it goes on with; `prompt` is its text.
    advised_id: session of which it has announced a turn.
    known: what the deployment says of the two.
    """

    tenant: Tenant
    number: int
    session_id: str
    advised_id: str
    prompt: str
    known: dict[str, Any] = field(default_factory=dict)

    async def prepare(self) -> None:
        """Begin the session and send the advisory."""
        await self.tenant.complete(self.prompt, session_id=self.session_id)
        body = {
            "session_id": self.advised_id, "model_id": self.tenant.model,
            "expected_arrival": ARRIVAL_S, "priority": PRIORITY,
        }  # fmt: skip
        answer = await self.tenant.http("POST", "/v1/advisories", body)
        assert answer.status == 202, answer.body
        self.known = await self._look()

    async def trouble(self) -> str:
        """What has changed of its session and its advisory, or nothing."""
        now = await self._look()
        changed = [
            f"{name}: {value!r} became {now.get(name)!r}"
            for name, value in self.known.items()
            if now.get(name) != value
        ]
        return "; ".join(changed)

    async def resume(self) -> str:
        """Go on with the session; what is wrong with what is left of it, or nothing."""
        answer = await self.tenant.complete(self.prompt, session_id=self.session_id)
        num = cached_tokens(answer.body)
        self.known = await self._look()
        wanted = NUM_BLOCKS * BLOCK_TOKENS
        return "" if num >= wanted else f"only {num} of {wanted} tokens of the session are left"

    def traces(self) -> list[bytes]:
        """What stands in no answer to anybody else."""
        named = b'"tenant":' + orjson.dumps(self.tenant.name)
        return [SECRET.encode(), named, orjson.dumps(self.known["session last_used"])]

    async def _look(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for what, session_id, names in (
            ("session", self.session_id, KEPT), ("advisory", self.advised_id, ADVISED),
        ):  # fmt: skip
            path = "sessions" if what == "session" else "advisories"
            answer = await self.tenant.http("GET", f"/v1/{path}/{session_id}")
            found = orjson.loads(answer.body)
            known |= {f"{what} {name}": found.get(name) for name in names}
        return known


def make_lane(tenant: Tenant, number: int) -> Lane:
    """A lane; `Lane.prepare` it."""
    prompt = f"lane {number}: {SECRET}, {text_of(str(number))}"[: NUM_BLOCKS * BLOCK_TOKENS + 5]
    return Lane(tenant, number, f"ledger-{number}", f"letter-{number}", prompt)


def vector_of(body: bytes) -> list[float]:
    """The vector in the answer to a job; empty if it is none."""
    answer = orjson.loads(body)
    if "data" not in answer:
        return []
    vector: list[float] = answer["data"][0]["embedding"]
    return vector


def are_equal(one: list[float], other: list[float]) -> bool:
    """Whether two vectors are of the same input.

    >>> are_equal([0.5, 0.5], [0.5, 0.50001]), are_equal([0.5], []), are_equal([], [])
    (True, False, False)
    """
    if not one or len(one) != len(other):
        return False
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) < VECTOR_TOLERANCE


async def work_on_nats(
    tenant: Tenant, lane: Lane, is_over: Callable[[], bool], report: Report
) -> None:
    """Streams over NATS that show the secret, and questions for an advisory; each as the first."""
    body = tenant.text(f"{SECRET}, says stream", STREAM_TOKENS, echo=True, stream=True)
    first: bytes | None = None
    while first is None or not is_over():
        reply = _text_of_stream(await tenant.submit(body))
        report.count("victim_replies_nats")
        first = first or reply
        report.expect(SECRET.encode() in reply, f"a reply over NATS without its prompt: {reply!r}")
        report.expect(reply == first, f"another reply over NATS: {reply!r}, not {first!r}")
        answer = await tenant.request(ADVISORY_GET.pattern, {"session_id": lane.advised_id})
        report.expect(b'"placed"' in answer, f"the advisory over NATS: {answer!r}")
        await asyncio.sleep(0)


def _text_of_stream(data: bytes) -> bytes:
    lines = data.split(b"\n")
    if lines[-1] != b"[DONE]":
        return b"not ended: " + lines[-1]
    chunks = [orjson.loads(line) for line in lines[:-1]]
    return "".join(
        choice["text"] for chunk in chunks for choice in chunk.get("choices", ())
    ).encode()
