"""From a start and its prompt, which a frontend sent, to a turn: parsed once, whole."""

from array import array
from dataclasses import dataclass

import numpy as np

from services.worker.core.adapters.image import AdapterUse
from services.worker.core.kv.expecting import Expected
from services.worker.core.turns.request import TurnRequest, TurnTargets, TurnTrace
from services.worker.core.turns.turn import Turn
from services.worker.core.turns.turn_cache import TurnCache
from shared.adapters.layout import layout_image
from shared.blocks import BlockKey, chain_keys, prefix_keys, root_key
from shared.errors import InvalidRequest
from shared.expiry import EXPIRY_S_MAX, is_expiry_s
from shared.locations import worth_keeping
from shared.owners import NO_OWNER, owner_key
from shared.wire.messages import (
    SLO_MS_MAX,
    AdapterRef,
    LoraCard,
    Prefetch,
    Prompt,
    TurnStart,
    unpack_array,
)
from shared.wire.sampling import flaw_in


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a turn needs to know of its model.

    Attributes:
        vocab_size: token ids that the model can read and generate.
        lora: what adapters it takes; None: none.
    """

    fingerprint: str
    num_layers: int
    block_tokens: int
    vocab_size: int
    lora: LoraCard | None = None
    takes_images: bool = False


def take_in(start: TurnStart, prompt: Prompt, shape: ModelShape, now_ns: int) -> Turn:
    """The turn.

    Raises:
        MalformedMessage: its tokens cannot be read.
        InvalidRequest: its tokens, its adapter or how to choose further ones cannot be what a model
            takes.
    """
    tokens = _checked_tokens(prompt, shape)
    outer = () if shape.lora is None else [each.name for each in shape.lora.outer]
    adapter_hash = start.adapter.adapter_hash if start.adapter is not None else ""
    request = TurnRequest(
        turn_id=start.turn_id,
        attempt=start.attempt,
        frontend_id=start.frontend_id,
        tenant=start.tenant,
        session_id=start.session_id,
        sampling=prompt.sampling,
        arrived_at_ns=now_ns,
        num_generated_before=prompt.num_generated,
        priority=start.priority,
        request_id=start.request_id,
        was_lost=start.was_lost,
        kv_at=worth_keeping(start.kv_at),
        expiry_s=prompt.expiry_s,
        announced_as=owner_key(start.tenant, start.expected_as),
    )
    root = root_key(shape.fingerprint, start.tenant, adapter_hash, prompt.cache_salt)
    cache = TurnCache(
        owner=request.owner,
        tokens=tokens.tolist(),
        block_tokens=shape.block_tokens,
        root=root,
        num_history=prompt.num_history if 0 < prompt.num_history <= len(tokens) else 0,
        is_private=prompt.is_private,
        keys=chain_keys(root, tokens, shape.block_tokens),
    )
    use = AdapterUse(
        ref=start.adapter,
        num_image_blocks=num_image_blocks(start.adapter, shape),
        can_be_assisted=start.adapter is not None and start.adapter.ranks.keys().isdisjoint(outer),
    )
    targets = TurnTargets(
        slo_ttft_ns=_target_ns("slo_ttft_ms", start.slo_ttft_ms),
        slo_tpot_ns=_target_ns("slo_tpot_ms", start.slo_tpot_ms),
    )
    return Turn(request, cache, use, targets, TurnTrace(start.trace))


def _checked_tokens(prompt: Prompt, shape: ModelShape) -> "array[int]":
    """The tokens of a prompt with which nothing is wrong."""
    tokens = unpack_array(prompt.tokens)
    if not tokens or not 0 <= prompt.num_generated < len(tokens):
        raise InvalidRequest("the prompt has no tokens", "prompt")
    ids = np.frombuffer(tokens, np.int32)
    if ids.min() < 0 or ids.max() >= shape.vocab_size:
        raise InvalidRequest(
            f"prompt: a token is outside the vocabulary of {shape.vocab_size}", "prompt"
        )
    if prompt.images and not shape.takes_images:
        raise InvalidRequest("images: this model takes none", "images")
    if flaw := flaw_in(prompt.sampling, shape.vocab_size):
        raise InvalidRequest(flaw, flaw.partition(":")[0])
    if not is_expiry_s(prompt.expiry_s):
        raise InvalidRequest(f"expiry_s must be 0 to {EXPIRY_S_MAX}", "expiry_s")
    return tokens


def expected_turn(
    prefetch: Prefetch, shape: ModelShape, now_ns: int, prompt: Prompt | None = None
) -> Expected:
    """An announced turn.

    Args:
        prompt: of one that runs elsewhere, with what it has generated so far.

    Raises:
        MalformedMessage: its keys cannot be read.
        InvalidRequest: its adapter is none of this model's, or a number is none.
    """
    for name in ("expires_in_ns", "arrives_in_ns", "num_tokens"):
        if getattr(prefetch, name) < 0:
            raise InvalidRequest(f"{name}: {getattr(prefetch, name)} is below 0", name)
    keys = prefix_keys(prefetch.keys) if prompt is None else _keys_of(prefetch, prompt, shape)
    running = prefetch.running
    return Expected(
        tenant=prefetch.tenant,
        session_id=prefetch.session_id,
        priority=prefetch.priority,
        expires_at_ns=now_ns + prefetch.expires_in_ns,
        arrives_at_ns=now_ns + prefetch.arrives_in_ns if prefetch.arrives_in_ns else 0,
        num_tokens=len(keys) * shape.block_tokens or prefetch.num_tokens,
        adapter=prefetch.adapter,
        num_image_blocks=num_image_blocks(prefetch.adapter, shape),
        kv_at=worth_keeping(prefetch.kv_at),
        keys=tuple(keys),
        trace=prefetch.trace,
        running=None if running is None else running.turn_id,
        maker=NO_OWNER if running is None else owner_key(prefetch.tenant, running.session_id),
    )


def _keys_of(prefetch: Prefetch, prompt: Prompt, shape: ModelShape) -> list[BlockKey]:
    """Of the full blocks that a turn has."""
    adapter_hash = "" if prefetch.adapter is None else prefetch.adapter.adapter_hash
    root = root_key(shape.fingerprint, prefetch.tenant, adapter_hash, prompt.cache_salt)
    return chain_keys(root, _checked_tokens(prompt, shape), shape.block_tokens)


def num_image_blocks(adapter: AdapterRef | None, shape: ModelShape) -> int:
    """Blocks of an adapter's image; 0 without one.

    Raises:
        InvalidRequest: it is none of this model's.
    """
    if adapter is None:
        return 0
    if shape.lora is None:
        raise InvalidRequest("adapter: this model takes none", "adapter")
    if not (adapter.adapter_hash and adapter.ranks):
        raise InvalidRequest("adapter: it has no hash or no targets", "adapter")
    return layout_image(shape.lora, adapter.ranks).num_blocks


def _target_ns(name: str, target_ms: float | None) -> int | None:
    if target_ms is None:
        return None
    if not 0 <= target_ms <= SLO_MS_MAX:
        raise InvalidRequest(f"{name}: {target_ms} is no target", name)
    return int(target_ms * 1e6)
