"""Keys and records of sessions whose model has KV of another kind for long sequences."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.frontend.prepare.remember import Reply, remember
from services.frontend.prepare.requests import Owner
from services.frontend.prepare.tokenize import TokenizedPrompt, given_tokens, take_tokens
from shared.blocks import chain_keys, child_key, pack_keys, root_key, sequence_root
from shared.ids import DEFAULT_TENANT, HostId, SessionId

SHORT_MAX, BLOCK = 20, 4
CARD = SimpleNamespace(
    model_id="m", fingerprint="f", block_tokens=BLOCK, max_model_len=100, short_rope_max=SHORT_MAX
)
MODEL: Any = SimpleNamespace(card=CARD, adapter_hash="")
OWNER = Owner(tenant=DEFAULT_TENANT, session_id=SessionId("s"))
ROOT = root_key("f", DEFAULT_TENANT)


class Sessions:
    """Keeps the record that is put."""

    record_expiry_s = 60

    def __init__(self) -> None:
        self.record: Any = None

    async def put(self, record: Any, *_: Any) -> None:
        self.record = record

    async def get(self, *_: Any) -> Any:
        kv_at = {HostId("h"): 5}
        return SimpleNamespace(record=self.record, epoch=1, kv_at=kv_at)


def make_app() -> Any:
    claim = SimpleNamespace(is_forgotten=False, epoch=0)
    return SimpleNamespace(
        sessions=Sessions(),
        clock=SimpleNamespace(wall_ns=lambda: 0),
        quotas=SimpleNamespace(of=lambda _: None),
        claims=SimpleNamespace(make=lambda *_: claim),
    )


def end_turn(app: Any, num_prompt: int, num_reply: int) -> TokenizedPrompt:
    async def turn() -> TokenizedPrompt:
        prompt = await take_tokens(app, MODEL, OWNER, list(range(num_prompt)), "")
        said = list(range(num_prompt, num_prompt + num_reply))
        await remember(app, MODEL, OWNER, prompt, Reply(said, "", num_reply))
        return prompt

    return asyncio.run(turn())


@pytest.mark.parametrize("num_tokens", [SHORT_MAX - 1, SHORT_MAX, SHORT_MAX + 1, 60])
def test_a_prompts_keys_are_of_its_length(num_tokens: int) -> None:
    tokens = list(range(num_tokens))
    made = asyncio.run(given_tokens(MODEL, OWNER, tokens, text=""))
    root = ROOT if num_tokens <= SHORT_MAX else sequence_root(ROOT, num_tokens, SHORT_MAX)
    assert made.keys == chain_keys(root, tokens, BLOCK)
    assert (made.keys == chain_keys(ROOT, tokens, BLOCK)) == (num_tokens <= SHORT_MAX)


@pytest.mark.parametrize(("num_prompt", "num_reply"), [(10, 3), (18, 3), (18, 4), (30, 3)])
def test_a_record_is_of_what_its_worker_left(num_prompt: int, num_reply: int) -> None:
    """The last token of a reply has no KV: with it alone a sequence is not long yet."""
    app = make_app()
    end_turn(app, num_prompt, num_reply)
    num_kept = num_prompt + num_reply - 1
    tokens = list(range(num_kept))
    root = sequence_root(ROOT, num_kept, SHORT_MAX)
    keys = chain_keys(root, tokens, BLOCK)
    if rest := tokens[len(keys) * BLOCK :]:
        keys.append(child_key(keys[-1], rest))
    assert app.sessions.record.block_keys == pack_keys(keys)


def test_a_prompt_that_is_the_first_long_one_has_no_history() -> None:
    app = make_app()
    assert end_turn(app, 10, 3).num_history == 0
    short = end_turn(app, 15, 3)
    assert (short.num_history, short.kv_at) == (12, {"h": 4})
    first_long = end_turn(app, 25, 3)
    assert (first_long.num_history, first_long.kv_at) == (0, {})
    long = end_turn(app, 32, 3)
    assert (long.num_history, long.kv_at) == (27, {"h": 5})
