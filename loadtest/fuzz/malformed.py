"""Requests by grammar and mutation, to all endpoints."""

import argparse
import asyncio
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadtest.deployment import MODEL, Deployment, deployed
from loadtest.fuzz.encoder import make_classifier, make_encoder
from loadtest.fuzz.grammar import Schema, value_of
from loadtest.fuzz.mutation import (
    Draft,
    long_fields,
    mutate_bytes,
    mutate_head,
    mutate_value,
    tame,
    written,
)
from loadtest.fuzz.report import Report, is_error
from loadtest.raw_http import NOTHING, Answer, ask, request_bytes
from services.frontend.api.bodies.fields import FIELDS
from shared.runtime.settings import as_variables

ANSWER_MAX_S = 60.0
HEAD_S = 2.0  # patience of the frontend, which some requests exhaust
NUM_AT_ONCE = 16
LOOK_EVERY = 50  # requests, at the deployment's processes
FAILURES_KEPT = 20
SHOWN_BYTES = 600
PROFILE_S = "1"  # one-shot models need not be measured well
MORE = (("GET", "/"), ("GET", "/openapi.json"), ("GET", "/static/js/main.js"), ("GET", "/nonsense"))
ALIASES = {
    "/v1/classify": ("/classify",),
    "/v1/rerank": ("/rerank", "/v2/rerank"),
    "/score": ("/v1/score",),
}
TASKS = {
    "/v1/embeddings": "embed", "/v2/embed": "embed", "/pooling": "embed", "/score": "rerank",
    "/v1/classify": "classify", "/v1/rerank": "rerank",
}  # fmt: skip
FIELDS_OF = {
    "/v1/chat/completions": "chat", "/v1/completions": "completions", "/score": "score",
    "/v1/embeddings": "embeddings", "/v2/embed": "v2/embed", "/v1/classify": "classify",
    "/v1/rerank": "rerank", "/pooling": "pooling", "/tokenize": "tokenize",
    "/detokenize": "detokenize", "/v1/advisories": "advisories", "/v1/responses": "responses",
    "/v1/messages": "messages", "/v1/messages/count_tokens": "messages",
}  # fmt: skip
WEIGHT_OF_BODY = 12  # how much likelier than others without
WEIGHT_OF_TEXT = 36
TEXT = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def add_options(parser: "argparse._ArgumentGroup") -> None:
    """Options of this mode."""
    parser.add_argument("--first", type=int, default=0, help="number of the first one (default 0)")


@contextmanager
def deployment(args: argparse.Namespace) -> Iterator[Deployment]:
    """The deployment of this mode, with a model of every task.

    Raises:
        PeerUnavailable: it did not come up.
    """
    settings = {
        "SYMPHONY_MAX_TOKENS_DEFAULT": "4",
        **as_variables({"slow_request_s": str(HEAD_S), "oneshot_profile_s": PROFILE_S}),
    }
    with tempfile.TemporaryDirectory(prefix="symphony-models-") as name:
        folder = Path(name)
        models = [
            str(make_encoder(folder / "encoder")),
            str(make_classifier(folder / "classifier", 3)),
            str(make_classifier(folder / "reranker", 1)),
        ]
        options = [word for model in (MODEL, *models) for word in ("--model", model)]
        with deployed(*options, settings=settings) as opened:
            yield opened


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Attributes:
    schema: of its body; None: it has none.
    model: that suits it.
    fields: names that mean something in its body, served or not.
    """

    method: str
    path: str
    schema: Schema | None = None
    model: str = ""
    fields: tuple[str, ...] = ()


async def run(deployment: Deployment, seed: int, args: argparse.Namespace) -> Report:
    """Send them all, so many at once; only 2xx, 4xx and 503 may come back."""
    api = orjson.loads((await _get(deployment, "/openapi.json")).body)
    models = orjson.loads((await _get(deployment, "/v1/models")).body)["data"]
    endpoints = endpoints_of(api, {model["task"]: model["id"] for model in models})
    report = Report(counts={"deaths": 0}, notes={"failures": []})
    numbers = iter(range(args.first, args.first + args.http))
    campaign = _Campaign(deployment, seed, report, endpoints)
    await asyncio.gather(*(campaign.send(numbers) for _ in range(NUM_AT_ONCE)))
    campaign.look()
    healthy = await _get(deployment, "/health")
    report.expect(healthy.status == 200, f"/health afterwards: {healthy.status}")
    return report


async def _get(deployment: Deployment, path: str) -> Answer:
    return await ask(deployment.port, request_bytes("GET", path, deployment.port))


def endpoints_of(api: Schema, models: dict[str, str]) -> list[Endpoint]:
    """What ``/openapi.json`` describes, its other names, and what it does not describe.

    Args:
        models: a model's id for each task.
    """
    found = [Endpoint(method, path) for method, path in MORE]
    for path, methods in api["paths"].items():
        names = tuple(f.name for f in FIELDS if FIELDS_OF.get(path) in f.endpoints)
        model = models.get(TASKS.get(path, "generate"), "")
        for method, operation in methods.items():
            if _has_no_end(operation):
                continue
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema")
            for name in (path, *ALIASES.get(path, ())):
                found.append(Endpoint(method.upper(), name, schema, model, names))
    return found


def _has_no_end(operation: Schema) -> bool:
    """Whether it answers nothing but events, for as long as a client listens."""
    answered = operation.get("responses", {}).get("200", {}).get("content", {})
    return list(answered) == ["text/event-stream"]


def draft_of(number: int, seed: int, port: int, endpoints: list[Endpoint]) -> Draft:
    """The request of this number, the same whenever it is asked for."""
    rng = random.Random(f"{seed}:{number}")
    endpoint = rng.choices(endpoints, list(map(_weight, endpoints)))[0]
    what = rng.choices(["as it should be", "values", "bytes", "head"], [25, 40, 20, 15])[0]
    body = None
    if endpoint.schema is not None:
        value = _value(endpoint, rng)
        for _ in range({"values": rng.randint(1, 3), "bytes": rng.randint(0, 1)}.get(what, 0)):
            value = mutate_value(value, rng, list(endpoint.fields))
        body = written(tame(value))
        if what == "bytes":
            body = _damaged(body, rng)
    draft = Draft(
        method=endpoint.method,
        path=endpoint.path.replace("{model_id}", rng.choice([endpoint.model, "x", "%00"])).replace(
            "{session_id}", rng.choice(["fox", "*.%3E", "%ff", "a" * 300])
        ),
        body=body,
        headers=[b"Host: 127.0.0.1:%d" % port, b"Connection: close"],
    )
    if body is not None:
        draft.headers += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    if what == "head":
        for _ in range(rng.randint(1, 2)):
            mutate_head(draft, rng)
    return draft


def _weight(endpoint: Endpoint) -> int:
    """How likely it is: what reaches an engine most."""
    if endpoint.path in TEXT:
        return WEIGHT_OF_TEXT
    return WEIGHT_OF_BODY if endpoint.schema is not None else 1


def _value(endpoint: Endpoint, rng: random.Random) -> Any:
    assert endpoint.schema is not None
    value = value_of(endpoint.schema, rng)
    if "model" in value or rng.random() < 0.5:
        value["model"] = endpoint.model if rng.random() < 0.95 else "gpt-x"
    return value


def _damaged(body: bytes, rng: random.Random) -> bytes:
    """Damaged bytes that do not ask for a long reply."""
    damaged = mutate_bytes(body, rng)
    try:
        value = orjson.loads(damaged)
    except orjson.JSONDecodeError:
        return damaged
    return body if long_fields(value) else damaged


class _Campaign:
    """Sends requests by their numbers, and judges what comes back."""

    def __init__(
        self, deployment: Deployment, seed: int, report: Report, endpoints: list[Endpoint]
    ) -> None:
        self._deployment = deployment
        self._seed = seed
        self._report = report
        self._endpoints = endpoints
        self._pids = deployment.pids()

    async def send(self, numbers: Iterator[int]) -> None:
        """Take numbers as long as there are some."""
        port = self._deployment.port
        for number in numbers:
            draft = draft_of(number, self._seed, port, self._endpoints)
            answer, trouble = NOTHING, ""
            began_at = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(ANSWER_MAX_S):
                    answer = await ask(port, draft.data())
            except (TimeoutError, OSError) as error:
                trouble = repr(error)
            took_s = asyncio.get_running_loop().time() - began_at
            self._report.see("answer_s", took_s)
            self._report.count("requests")
            self._report.count(f"status_{answer.status}" if answer.status else "hung_up")
            if trouble := trouble or _trouble(draft, answer):
                self._fail(number, draft, answer, trouble)
            if number % LOOK_EVERY == 0:
                self.look()

    def look(self) -> None:
        """See whether a process has ended."""
        pids = self._deployment.pids()
        if pids != self._pids:
            self._report.count("deaths")
            self._report.expect(False, f"processes ended: {self._pids} became {pids}")
            self._pids = pids

    def _fail(self, number: int, draft: Draft, answer: Answer, trouble: str) -> None:
        self._report.count("failures")
        alone = f"./symphony bench fuzz --http 1 --first {number} --seed {self._seed}"
        self._report.expect(False, f"request {number}: {trouble} ({alone})")
        failures = self._report.notes["failures"]
        if len(failures) < FAILURES_KEPT:
            failures.append({
                "number": number, "trouble": trouble, "alone": alone,
                "request": draft.data()[:SHOWN_BYTES].decode("latin-1"),
                "answer": answer.body[:SHOWN_BYTES].decode("latin-1"),
            })  # fmt: skip


def _trouble(draft: Draft, answer: Answer) -> str:
    """What is wrong with an answer, or nothing."""
    status = answer.status
    if not status:
        return "" if draft.is_broken else "no answer"
    if not (200 <= status < 300 or 400 <= status < 500 or status == 503):
        return f"status {status}"
    if not answer.is_whole:
        return f"status {status}, and then it broke off"
    if status >= 400 and draft.method != "HEAD" and draft.path != "/health":
        return "" if is_error(answer.body) else f"status {status}, no error as OpenAI writes it"
    return "an internal error in the stream" if b'"internal_error"' in answer.body else ""
