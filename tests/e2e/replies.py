"""Replies that depend on each of their tokens: greedy, with a penalty on what was said before. One
that was disturbed must be, token for token, the one that was not. An emulated model says the same
whatever it is asked; what it read is told by its log-probabilities.
"""

import json
from pathlib import Path
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster

PROMPT = "Tell me how the sea came to be salt, and leave out nothing that the miller said. " * 2
REPLY_TOKENS = 300
STEADY = "steady"  # an emulated model
GREEDY: dict[str, Any] = {"temperature": 0, "frequency_penalty": 0.5}
WHOLE_LENGTH = {"ignore_eos": True}


def steady(folder: Path, step_ms: float = 5.0) -> str:
    """The profile of a model that takes so long for each step, whatever is in it."""
    profile = {
        "name": STEADY, "base_ms": step_ms, "prefill_ms_per_token": 0.0, "decode_ms_per_turn": 0.0,
        "num_layers": 2, "max_model_len": 8192, "num_kv_tokens": 2_000_000,
    }  # fmt: skip
    path = folder / "profile.json"
    path.write_text(json.dumps(profile))
    return str(path)


class Reply:
    """A streamed reply, read piece by piece.

    Attributes:
        tokens: bytes of each token, of which the demo model has one for every byte; from an
            emulated model with its log-probability, in thousandths, which tells what it read.
        text: what they say.
        finish: the finish reason, once it came.
        cached_tokens: of the prompt, once the end came.
    """

    def __init__(
        self,
        client: OpenAI,
        max_tokens: int = REPLY_TOKENS,
        messages: list[ChatCompletionMessageParam] | None = None,
        session_id: str | None = None,
        model: str = DEMO_MODEL_ID,
        cache_salt: str = "",
    ) -> None:
        self._stream = client.chat.completions.create(
            model=model,
            messages=messages or [{"role": "user", "content": PROMPT}],
            max_tokens=max_tokens,
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            extra_body={**WHOLE_LENGTH, "session_id": session_id, "cache_salt": cache_salt or None},
            **GREEDY,
        )
        self._is_emulated = model == STEADY
        self.tokens: list[tuple[int, ...]] = []
        self.text = ""
        self.finish: str | None = None
        self.cached_tokens = 0

    def read(self, num_tokens: int) -> None:
        """Read on until `num_tokens` have come, or the end.

        Raises:
            openai.APIError: the stream ended with an error.
        """
        while len(self.tokens) < num_tokens and (chunk := next(self._stream, None)) is not None:
            if chunk.usage and chunk.usage.prompt_tokens_details:
                self.cached_tokens = chunk.usage.prompt_tokens_details.cached_tokens or 0
            for choice in chunk.choices:
                said = choice.logprobs.content if choice.logprobs else None
                for token in said or ():
                    read = (round(1000 * token.logprob),) if self._is_emulated else ()
                    self.tokens.append((*(token.bytes or ()), *read))
                self.text += choice.delta.content or ""
                self.finish = choice.finish_reason or self.finish

    def read_to_end(self) -> list[tuple[int, ...]]:
        """All tokens; the stream ended as it should."""
        self.read(1_000_000)
        assert self.finish == "length"
        return self.tokens

    def hang_up(self) -> None:
        """Close the connection."""
        self._stream.close()


def busy_workers(cluster: Cluster) -> list[str]:
    """The children that have turns."""
    workers = cluster.look()["workers"]
    return [f"worker-{w['worker_id'].rpartition('-w')[2]}" for w in workers if w["num_turns"]]


def is_idle(cluster: Cluster) -> bool:
    """Whether no worker has a turn, or a page that is in use."""
    look = cluster.look()
    return not busy_workers(cluster) and look["tiers"]["gpu"]["pages_dirty"] == 0


def say(
    client: OpenAI,
    text: str = PROMPT,
    session_id: str | None = None,
    model: str = DEMO_MODEL_ID,
) -> ChatCompletion:
    """A short turn."""
    reply: ChatCompletion = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        max_tokens=10,
        extra_body={**WHOLE_LENGTH, "session_id": session_id},
        **GREEDY,
    )
    return reply


def cached_tokens(reply: ChatCompletion) -> int:
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    return reply.usage.prompt_tokens_details.cached_tokens or 0
