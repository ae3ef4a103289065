"""What a tenant tries that wants what is another's. Each attempt says what it got, or nothing.

What it could have changed, the caller of an attempt sees by `victim.Lane.trouble`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from loadtest.fuzz.tenancy.eavesdropping import MARK, Eavesdropper
from loadtest.fuzz.tenancy.internals import draft, internal_subject
from loadtest.fuzz.tenancy.servers import try_nats, try_redis
from loadtest.fuzz.tenancy.tenant import COMPLETIONS, JOBS, Tenant, cached_tokens, key_of
from loadtest.fuzz.tenancy.victim import JOB, Lane, are_equal, text_of, vector_of
from loadtest.raw_http import Answer, events, read_head, request_bytes, sent
from shared.wire.subjects import (
    ADVISORY_GET,
    ADVISORY_INVALIDATE,
    ADVISORY_SUBMIT,
    INFERENCE_SUBMIT,
)

OWN_JOB = "a of in to it is on by at as an or"
LISTEN_S = 0.1
PRIORITY_MAX = 1  # what the thief may ask for
WRONG_TENANT = b'"wrong_tenant"'


@dataclass(frozen=True, slots=True)
class Raid:
    """One attempt.

    Attributes:
        number: of it, each used once.
        lane: of the victim, whose things it is about.
        request_ids: of what the victim is asking now.
        jobs: the vectors of `OWN_JOB` and of the victim's.
    """

    number: int
    rng: random.Random
    thief: Tenant
    lane: Lane
    request_ids: list[str]
    jobs: tuple[list[float], list[float]]
    ears: Eavesdropper

    @property
    def victim(self) -> Tenant:
        """Whose things it is about."""
        return self.lane.tenant

    def disguise(self) -> list[bytes]:
        """Headers that might be taken for the victim's."""
        name, session_id = self.victim.name, self.lane.session_id
        all_of_them = [
            f"X-Tenant: {name}", f"Tenant: {name}", f"X-Symphony-Tenant: {name}",
            f"X-Forwarded-User: {name}", f"X-Session-Id: {session_id}",
            f"X-Request-Id: {self.rng.choice(self.request_ids)}", f"Cookie: tenant={name}",
        ]  # fmt: skip
        chosen = self.rng.sample(all_of_them, self.rng.randint(0, 3))
        return [header.encode() for header in chosen]

    def claims(self) -> dict[str, Any]:
        """Fields that might be taken for the victim's."""
        name = self.victim.name
        all_of_them = {
            "tenant": name, "user": name, "tenant_id": name, "owner": {"tenant": name},
            "metadata": {"tenant": name}, "request_id": self.rng.choice(self.request_ids),
        }  # fmt: skip
        return dict(self.rng.sample(list(all_of_them.items()), self.rng.randint(0, 3)))

    def spelling(self, session_id: str) -> str:
        """A path's end that might be taken for the victim's session."""
        name = self.victim.name
        return self.rng.choice([
            session_id, session_id.upper(), "".join(f"%{byte:02x}" for byte in session_id.encode()),
            quote(quote(session_id)), f"{session_id}%00", f"{session_id}/", f"./{session_id}",
            f"{name}/{session_id}", f"{name}:{session_id}", f"4:{name}:{session_id}",
            f"../4:{name}:{session_id}", f"%2e%2e%2f4%3A{name}%3A{session_id}",
            f"{session_id}?tenant={name}", f"{session_id}%20", f"{session_id}%0d%0a", "*", "%2a",
            f"{session_id[:-1]}*", "../sessions/" + session_id, f"%ef%bb%bf{session_id}",
        ])  # fmt: skip

    def leak(self, data: bytes) -> str:
        """What of the victim's stands in `data`, or nothing."""
        found = [trace for trace in self.lane.traces() if trace in data]
        return f"it was sent {found[0].decode()!r}: {data[:300]!r}" if found else ""


async def try_session(raid: Raid) -> str:
    """Read the session, or go on with it."""
    session_id = raid.lane.session_id
    if raid.rng.random() < 0.5:
        path = f"/v1/sessions/{raid.spelling(session_id)}"
        answer = await raid.thief.http("GET", path, None, *raid.disguise())
        return raid.leak(answer.body)
    prompt = text_of(f"raid {raid.number}")
    fields = {"session_id": session_id, **raid.claims()}
    if raid.rng.random() < 0.3:
        body = await raid.thief.submit(raid.thief.text(prompt, **fields))
    else:
        body = (await raid.thief.complete(prompt, *raid.disguise(), **fields)).body
    num = cached_tokens(body)
    return raid.leak(body) or (f"{num} tokens of it were there" if num else "")


async def try_advisory(raid: Raid) -> str:
    """Read, change or take back an advisory; or let its turn come."""
    session_id = raid.lane.advised_id
    body = {"session_id": session_id, "priority": PRIORITY_MAX, "expected_arrival": 0.1,
            **raid.claims()}  # fmt: skip
    over_nats = raid.rng.random() < 0.5
    match raid.rng.choice(["submit", "get", "invalidate", "turn"]):
        case "turn":
            prompt = text_of(f"raid {raid.number}")
            data = (await raid.thief.complete(prompt, session_id=session_id)).body
        case "submit" if over_nats:
            data = await raid.thief.request(ADVISORY_SUBMIT.pattern, body)
        case "get" if over_nats:
            data = await raid.thief.request(ADVISORY_GET.pattern, body)
        case "invalidate" if over_nats:
            data = await raid.thief.request(ADVISORY_INVALIDATE.pattern, body)
        case "submit":
            answer = await raid.thief.http("POST", "/v1/advisories", body, *raid.disguise())
            data = answer.body
        case how:
            path = f"/v1/advisories/{raid.spelling(session_id)}"
            method = "GET" if how == "get" else "DELETE"
            data = (await raid.thief.http(method, path, None, *raid.disguise())).body
    return raid.leak(data)


async def try_prefix(raid: Raid) -> str:
    """Ask what begins as a prompt of the victim's does, or is a piece of it."""
    prompt = text_of(f"page {raid.number}")
    await raid.victim.complete(prompt)
    fields: dict[str, Any] = {}
    theirs: Any = prompt[: raid.rng.randint(70, len(prompt))]
    match raid.rng.randrange(5):
        case 0:
            theirs = prompt + " And then?"
        case 1:
            theirs = [ord(character) for character in prompt]
        case 2:
            theirs, fields = prompt + prompt, {
                "truncate_prompt_tokens": len(prompt), "truncation_side": "right"
            }  # fmt: skip
        case 3:
            fields = {"echo": True}
    answer = await raid.thief.complete(theirs, *raid.disguise(), **fields, **raid.claims())
    return await _judge_cached(raid, answer.body, prompt)


async def try_cached(raid: Raid) -> str:
    """Ask the very prompt of the victim's, with its session, its salt and its name."""
    prompt = text_of(f"leaf {raid.number}")
    salt = raid.rng.choice([{}, {"cache_salt": f"pepper-{raid.number}"}])
    session = raid.rng.choice([{}, {"session_id": f"leaf-{raid.number}"}])
    await raid.victim.complete(prompt, **salt, **session)
    fields = raid.claims() | raid.rng.choice([
        {}, salt, session, salt | session, {"cache_salt": raid.victim.name},
        {"cache_salt": ""}, {"cache_salt": f"\x04\0\0\0{raid.victim.name}"},
    ])  # fmt: skip
    if raid.rng.random() < 0.3:
        body = await raid.thief.submit(raid.thief.text(prompt, **fields))
    else:
        body = (await raid.thief.complete(prompt, *raid.disguise(), **fields)).body
    return await _judge_cached(raid, body, prompt, **salt)


async def _judge_cached(raid: Raid, body: bytes, prompt: str, **salt: str) -> str:
    num = cached_tokens(body)
    if num:
        return f"{num} tokens of the victim's prompt were there"
    again = await raid.victim.complete(prompt, **salt)
    if not cached_tokens(again.body):
        return "the victim's own prompt was not there for itself"
    return raid.leak(body)


async def try_delete(raid: Raid) -> str:
    """Delete the session, or have it deleted."""
    session_id = raid.lane.session_id
    if raid.rng.random() < 0.8:
        path = f"/v1/sessions/{raid.spelling(session_id)}"
        body = raid.rng.choice([None, raid.claims()])
        data = (await raid.thief.http("DELETE", path, body, *raid.disguise())).body
    else:
        data = b""
        await raid.ears.publish(*draft(raid.rng, raid.victim.name, session_id, deletes=True))
    return raid.leak(data) or await raid.lane.resume()


async def try_job(raid: Raid) -> str:
    """Send requests under the names of the victim's, and in its name."""
    request_id = f"X-Request-Id: {raid.rng.choice(raid.request_ids)}".encode()
    match raid.rng.randrange(4):
        case 0:
            return await _hang_up(raid, request_id)
        case 1:
            own = raid.thief.text(text_of(f"raid {raid.number}"), tenant=raid.victim.name)
            data = await raid.thief.submit(own)
            return "" if WRONG_TENANT in data else f"its turn ran as another's: {data[:300]!r}"
        case 2:
            job = {"model": raid.thief.encoder, "input": OWN_JOB, "tenant": raid.victim.name}
            data = await raid.thief.submit(job)
            return "" if WRONG_TENANT in data else f"its job ran as another's: {data[:300]!r}"
    mine, theirs = await asyncio.gather(
        raid.thief.embed(OWN_JOB, request_id, **raid.claims()), raid.victim.embed(JOB, request_id)
    )
    for answer, expected, whose in ((mine, raid.jobs[0], "the thief's"),
                                    (theirs, raid.jobs[1], "the victim's")):  # fmt: skip
        if answer.status == 200 and not are_equal(vector_of(answer.body), expected):
            return f"another vector for {whose} job"
    return ""


async def _hang_up(raid: Raid, request_id: bytes) -> str:
    """Begin a stream with the name of one of the victim's, and leave."""
    body = orjson.dumps(raid.thief.text(text_of(f"raid {raid.number}"), 200, stream=True))
    port = raid.thief.deployment.port
    data = request_bytes("POST", COMPLETIONS, port, body, raid.thief.authorization, request_id)
    async with sent(port, data) as reader:
        _, headers = await read_head(reader)
        async for event in events(reader, headers):
            return raid.leak(event)
    return ""


async def try_subject(raid: Raid) -> str:
    """Subscribe to what is not the thief's, or publish it."""
    if raid.rng.random() < 0.6:
        await raid.ears.publish(*draft(raid.rng, raid.victim.name, raid.lane.session_id))
        return ""
    subject, queue = internal_subject(raid.rng, raid.victim.name, wild=True)
    async with raid.ears.listening(subject, queue):
        answer = await raid.victim.request(
            ADVISORY_GET.pattern, {"session_id": raid.lane.advised_id}
        )
        await asyncio.sleep(LISTEN_S)
    return "" if b'"placed"' in answer else f"the victim was sent {answer!r}"


async def try_reply(raid: Raid) -> str:
    """Have an answer sent to where it is not the thief's to send."""
    reply, _ = internal_subject(raid.rng, raid.victim.name, wild=False)
    if raid.rng.random() < 0.3:
        reply = raid.victim.bus.new_inbox()
    wrong = {"model": MARK, "prompt": MARK}
    right = raid.thief.text(f"{MARK} {raid.number}", 2, echo=True)
    subject, body = raid.rng.choice([
        (INFERENCE_SUBMIT, wrong), (INFERENCE_SUBMIT, right),
        (INFERENCE_SUBMIT, right | {"stream": True}),
        (ADVISORY_GET.pattern, {"session_id": MARK}),
        (ADVISORY_INVALIDATE.pattern, {"session_id": MARK}),
    ])  # fmt: skip
    await raid.ears.publish(subject, orjson.dumps(body), reply)
    return ""


async def try_priority(raid: Raid) -> str:
    """Be served before others, by a priority that is not the thief's to ask for."""
    priority = raid.rng.choice([PRIORITY_MAX + 1, 2, 9, 2**31 - 1])
    fields = {"priority": priority, **raid.claims()}
    prompt = text_of(f"raid {raid.number}")
    match raid.rng.choice(["http", "nats", "advisory", "advisory over nats"]):
        case "http":
            data = (await raid.thief.complete(prompt, *raid.disguise(), **fields)).body
        case "nats":
            data = await raid.thief.submit(raid.thief.text(prompt, **fields))
        case how:
            body = {"session_id": f"raid-{raid.number}", **fields}
            if how == "advisory":
                answer = await raid.thief.http("POST", "/v1/advisories", body, *raid.disguise())
                data = answer.body
            else:
                data = await raid.thief.request(ADVISORY_SUBMIT.pattern, body)
    is_served = b'"choices"' in data or b'"state"' in data
    return f"{priority} was taken: {data[:200]!r}" if is_served else ""


async def try_door(raid: Raid) -> str:
    """Come in without one's own key."""
    match raid.rng.randrange(4):
        case 0:
            return await try_nats(raid.thief.deployment, raid.rng)
        case 1:
            return await try_redis(raid.thief.deployment, raid.rng, raid.victim.name)
    key = raid.rng.choice([
        "", "Bearer", "Bearer ", f"Bearer {raid.victim.name}", "Bearer null", "Basic Og==",
        f"Bearer {key_of(raid.victim.name).upper()}", f"Bearer {key_of(raid.victim.name)[:-1]}",
        f"Bearer {key_of(raid.victim.name)}x", f"Digest {key_of(raid.victim.name)}",
        f"Bearer {key_of(raid.thief.name)},{raid.victim.name}", "Bearer \xff",
    ])  # fmt: skip
    header = f"Authorization: {key}".encode("latin-1") if key else b""
    method, path = raid.rng.choice([
        ("GET", f"/v1/sessions/{raid.lane.session_id}"), ("GET", "/v1/models"),
        ("DELETE", f"/v1/sessions/{raid.lane.session_id}"), ("GET", "/metrics"),
        ("DELETE", f"/v1/advisories/{raid.lane.advised_id}"), ("POST", JOBS),
    ])  # fmt: skip
    answer: Answer = await raid.thief.http(method, path, None, *raid.disguise(), key=header)
    return "" if answer.status == 401 else f"{method} {path} with {key!r}: {answer.status}"


KINDS: dict[str, Callable[[Raid], Awaitable[str]]] = {
    "session": try_session, "advisory": try_advisory, "prefix": try_prefix,
    "cached-tokens": try_cached, "delete": try_delete, "job": try_job,
    "nats-subject": try_subject, "reply-subject": try_reply, "door": try_door,
    "priority": try_priority,
}  # fmt: skip
