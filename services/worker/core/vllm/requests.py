"""From a turn of ours to a request of vLLM's."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from services.worker.core.turns.turn import Turn
from services.worker.core.vllm.forms import Form
from services.worker.device.base.executor import ModelInfo
from shared.errors import InvalidRequest
from shared.ids import TenantId, TurnId

LOWEST_PRIORITY = 1 << 30  # of requests that no client waits for
SEED_BYTES = 7  # vLLM takes seeds as signed 64-bit numbers
CONTEXT_EXCEEDED = "context_length_exceeded"
ENGINE_REFUSED = "engine_refused"


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter as vLLM knows it.

    Attributes:
        name: its content hash.
        number: of this load of it.
        path: folder with its files.
    """

    name: str
    number: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRequest:
    """What vLLM is asked for.

    Attributes:
        args: keyword arguments of `vllm.SamplingParams`.
        salt: what keeps its prefixes apart from others', see `cache_salt`.
        priority: the smaller goes first.
        kv: `RequestKv` as JSON; empty: its KV stays in vLLM's cache.
        images: files, in base64, that placeholders among the tokens stand for.
        form: what its reply is held to.
        adapter: that it runs on, which vLLM has.
    """

    request_id: str
    tokens: list[int]
    args: Mapping[str, Any]
    salt: str
    priority: int = 0
    kv: str = ""
    images: Sequence[str] = ()
    form: Form | None = None
    adapter: AdapterFiles | None = None


def request_args(turn: Turn, info: ModelInfo) -> dict[str, Any]:
    """Keyword arguments of `vllm.SamplingParams`; sets how long the turn may become.

    Tokens that earlier attempts generated are part of vLLM's prompt: they count for the repetition
    penalty only, and a seed goes on as another one, since vLLM's generator would begin again.

    Raises:
        InvalidRequest: the prompt is too long.
    """
    sampling, num_before = turn.request.sampling, turn.request.num_generated_before
    ends = [] if sampling.ignore_eos else sorted(info.end_token_ids)
    stops = [*ends, *sampling.stop_token_ids]
    _check(turn, info, stops)
    turn.length_max = min(info.max_model_len, turn.num_prompt + sampling.max_tokens)
    max_tokens = max(turn.length_max - len(turn.tokens), 1)
    seed = sampling.seed
    if seed is not None and num_before:
        seed = derived_seed(seed, num_before)
    return {
        "max_tokens": max_tokens,
        "min_tokens": min(max(sampling.min_tokens - num_before, 0), max_tokens),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p or 1e-6,  # vLLM's begins above 0: the likeliest token alone
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": max(sampling.repetition_penalty, 0.01),
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": dict(sampling.logit_bias) or None,
        "allowed_token_ids": sampling.allowed_token_ids or None,
        "seed": seed,
        "stop_token_ids": stops,
        "ignore_eos": sampling.ignore_eos,
        "logprobs": sampling.logprobs,
        "prompt_logprobs": None if num_before else sampling.prompt_logprobs,
        "detokenize": False,
    }


def _check(turn: Turn, info: ModelInfo, stops: Collection[int]) -> None:
    """Refuse what vLLM does not do, by name.

    Raises:
        InvalidRequest: see `request_args`.
    """
    sampling = turn.request.sampling
    if len(turn.tokens) >= info.max_model_len:
        raise InvalidRequest(
            f"the prompt has {len(turn.tokens)} tokens; this worker takes {info.max_model_len - 1}",
            code=CONTEXT_EXCEEDED,
        )
    allowed = set(sampling.allowed_token_ids)
    if sampling.min_tokens and allowed and allowed <= set(stops):  # vLLM would take another one
        raise InvalidRequest(
            "min_tokens: no token of allowed_token_ids may come before; all end the reply",
            code=ENGINE_REFUSED,
        )


def derived_seed(seed: int, num_generated: int) -> int:
    """Of a sampled turn that goes on after so many tokens."""
    digest = blake2b(f"{seed}:{num_generated}".encode(), digest_size=SEED_BYTES)
    return int.from_bytes(digest.digest(), "little")


def cache_salt(tenant: TenantId, salt: str, private_turn: TurnId | str = "") -> str:
    """What vLLM keeps prefixes apart by: its own prefix cache knows no tenants.

    Args:
        salt: the request's own ``cache_salt``.
        private_turn: the turn whose KV is for it alone; empty: its session's next turns find it.
    """
    digest = blake2b(digest_size=16)
    for part in (tenant, salt, private_turn):
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.hexdigest()


def vllm_priority(priority: int) -> int:
    """To vLLM, the smaller goes first."""
    return -priority
