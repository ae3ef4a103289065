"""One tenant at work in a deployment that asks for keys: over HTTP with its key, over NATS with its
nkey.
"""

from dataclasses import dataclass
from typing import Any

import orjson
from nats.aio.client import Client

from loadtest.deployment import Deployment
from loadtest.raw_http import Answer, ask, request_bytes
from shared.wire.subjects import INFERENCE_SUBMIT

ANSWER_MAX_S = 60.0
COMPLETIONS = "/v1/completions"
JOBS = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class Tenant:
    """Attributes:
    bus: its client of NATS.
    model, encoder: what it asks, a generative model and a one-shot one.
    """

    name: str
    deployment: Deployment
    bus: Client
    model: str
    encoder: str

    @property
    def authorization(self) -> bytes:
        """The header that says who it is."""
        return f"Authorization: Bearer {key_of(self.name)}".encode()

    async def http(
        self, method: str, path: str, body: Any = None, *headers: bytes, key: bytes | None = None
    ) -> Answer:
        """One request.

        Args:
            key: header in place of its own; empty: none.
        """
        more = [header for header in (self.authorization if key is None else key, *headers)
                if header]  # fmt: skip
        data = None if body is None else orjson.dumps(body)
        port = self.deployment.port
        return await ask(port, request_bytes(method, path, port, data, *more))

    def text(self, prompt: str, num_tokens: int = 1, **fields: Any) -> dict[str, Any]:
        """The body of a completion that is the same each time it is asked for."""
        return {
            "model": self.model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0,
            "ignore_eos": True, **fields,
        }  # fmt: skip

    async def complete(self, prompt: str, *headers: bytes, **fields: Any) -> Answer:
        """Ask for one token."""
        return await self.http("POST", COMPLETIONS, self.text(prompt, **fields), *headers)

    async def embed(self, text: str, *headers: bytes, **fields: Any) -> Answer:
        """One job."""
        body = {"model": self.encoder, "input": text, **fields}
        return await self.http("POST", JOBS, body, *headers)

    async def submit(self, body: Any) -> bytes:
        """Everything that comes back over NATS, until its end."""
        inbox = self.bus.new_inbox()
        replies = await self.bus.subscribe(inbox)
        await self.bus.publish(INFERENCE_SUBMIT, orjson.dumps(body), reply=inbox)
        parts = []
        while part := (await replies.next_msg(ANSWER_MAX_S)).data:
            parts.append(part)
        await replies.unsubscribe()
        return b"\n".join(parts)

    async def request(self, subject: str, body: Any) -> bytes:
        """The one answer over NATS."""
        reply = await self.bus.request(subject, orjson.dumps(body), timeout=ANSWER_MAX_S)
        return reply.data


def key_of(tenant: str) -> str:
    """Its API key."""
    return f"key-of-{tenant}"


def cached_tokens(body: bytes) -> int:
    """How many tokens of the prompt were not computed; 0 if it is no answer."""
    answer = orjson.loads(body)
    usage = answer.get("usage") or {}
    num: int = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return num
