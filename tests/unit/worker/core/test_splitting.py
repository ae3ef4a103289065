"""Step outputs fit the server's messages, and say the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.core.splitting import (
    commit_blocks_max,
    split_deltas,
    turns_held_max,
)
from shared.blocks import BLOCK_TOKENS
from shared.ids import TurnId, WorkerId
from shared.wire import messages as m
from shared.wire.messages import StepOutput, TokenLogprobs, TurnDelta, encode

PAYLOAD = 16_384


def entries(count: int, top: int) -> list[TokenLogprobs]:
    pairs = [(100_000 + n, -1234.567890123456) for n in range(top)]
    return [TokenLogprobs(token=n, logprob=-1234.567890123456, top=pairs) for n in range(count)]


def delta(name: str, num_prompt: int = 0, top: int = 20) -> TurnDelta:
    return TurnDelta(
        turn_id=TurnId(f"turn-{name:0>24}"), attempt=1_795_000_000_000, index=0, tokens=[7],
        logprobs=entries(1, top), prompt_logprobs=entries(num_prompt, top) if num_prompt else None,
        cached_tokens=0, queue_ns=10**9, prefill_ns=10**9,
    )  # fmt: skip


def test_what_fits_goes_in_one_message() -> None:
    deltas = [delta(str(n), top=0) for n in range(8)]
    assert split_deltas(deltas, PAYLOAD) == [deltas]
    assert split_deltas([], PAYLOAD) == []


@given(st.lists(st.integers(0, 200), max_size=12), st.integers(0, 20))
def test_every_message_fits_and_nothing_is_lost(sizes: list[int], top: int) -> None:
    deltas = [delta(str(at), size, top) for at, size in enumerate(sizes)]
    groups = split_deltas(deltas, PAYLOAD)
    for group in groups:
        assert group
        assert len(encode(StepOutput(deltas=group))) <= PAYLOAD
    parts = [part for group in groups for part in group]
    for given_ in deltas:
        mine = [part for part in parts if part.turn_id == given_.turn_id]
        together = [entry for part in mine for entry in part.prompt_logprobs or []]
        assert together == (given_.prompt_logprobs or [])
        assert [part.tokens for part in mine] == [[]] * (len(mine) - 1) + [given_.tokens]
        assert mine[-1].cached_tokens == given_.cached_tokens


def test_no_message_holds_up_its_reader_however_large_the_server_lets_it_be() -> None:
    long = delta("long", num_prompt=4500)
    groups = split_deltas([delta("before"), long, delta("behind")], 8 * 1024**2)
    sizes = [len(encode(StepOutput(deltas=group))) for group in groups]
    assert max(sizes) <= 256 * 1024
    parts = [part for group in groups for part in group if part.turn_id == long.turn_id]
    assert sum(len(part.prompt_logprobs or []) for part in parts) == 4500


@pytest.mark.parametrize("num_layers", [1, 30, 126])
def test_a_commit_of_as_many_blocks_as_fit_fits(num_layers: int) -> None:
    room = 1024**2
    block = m.KvBlock(
        key="f" * 32,
        parent="f" * 32,
        tokens=m.pack_ints([2**31 - 1] * BLOCK_TOKENS),
        pages=m.pack_ints([2**31 - 1] * num_layers),
        checksums=m.pack_ints([2**64 - 1] * num_layers, "Q"),
    )
    commit = m.KvCommit(
        worker_id=WorkerId("w" * 64), incarnation="i" * 64, fingerprint="f" * 64, page_bytes=1,
        blocks=[block] * commit_blocks_max(num_layers, room),
    )  # fmt: skip
    assert room / 4 < len(m.encode(commit)) <= room


def test_a_report_of_as_many_turns_as_may_be_held_fits() -> None:
    room = 1024**2
    ref = m.TurnRef(turn_id=TurnId("t" * 64), attempt=10**13)
    assert len(m.encode([ref] * turns_held_max(room))) < room * 0.9
