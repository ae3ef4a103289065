"""Step outputs fit the server's messages, and say the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.core.splitting import (
    Unsent,
    commit_blocks_max,
    split_output,
    turns_held_max,
)
from shared.blocks import BLOCK_TOKENS
from shared.ids import TurnId, WorkerId
from shared.wire import messages as m
from shared.wire.messages import NextToken, StepOutput, TokenLogprobs, TurnDelta, decode, encode

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


def token(name: str, index: int = 5) -> NextToken:
    return (TurnId(f"turn-{name:0>24}"), 1_795_000_000_000, index, 2**31 - 1)


def test_what_fits_goes_in_one_message() -> None:
    deltas = [delta(str(n), top=0) for n in range(8)]
    tokens = [token(str(n)) for n in range(8)]
    for said in ({"deltas": deltas}, {"deltas": deltas, "tokens": tokens}, {"tokens": tokens}):
        output = StepOutput(**said)
        assert split_output(output, PAYLOAD) == [output]


@given(st.lists(st.integers(0, 200), max_size=12), st.integers(0, 20), st.integers(0, 300))
def test_every_message_fits_and_nothing_is_lost(sizes: list[int], top: int, num: int) -> None:
    deltas = [delta(str(at), size, top) for at, size in enumerate(sizes)]
    tokens = [token(f"a{at}") for at in range(num)]
    outputs = split_output(StepOutput(deltas=deltas, tokens=tokens), PAYLOAD)
    for output in outputs:
        assert output.deltas or output.tokens or not (deltas or tokens)
        assert len(encode(output)) <= PAYLOAD
    assert [row for output in outputs for row in output.tokens] == tokens
    parts = [part for output in outputs for part in output.deltas]
    for given_ in deltas:
        mine = [part for part in parts if part.turn_id == given_.turn_id]
        together = [entry for part in mine for entry in part.prompt_logprobs or []]
        assert together == (given_.prompt_logprobs or [])
        assert [part.tokens for part in mine] == [[]] * (len(mine) - 1) + [given_.tokens]
        assert mine[-1].cached_tokens == given_.cached_tokens


def test_no_message_holds_up_its_reader_however_large_the_server_lets_it_be() -> None:
    long = delta("long", num_prompt=4500)
    output = StepOutput(deltas=[delta("before"), long, delta("behind")])
    outputs = split_output(output, 8 * 1024**2)
    assert max(len(encode(output)) for output in outputs) <= 256 * 1024
    parts = [part for output in outputs for part in output.deltas if part.turn_id == long.turn_id]
    assert sum(len(part.prompt_logprobs or []) for part in parts) == 4500


# What steps say that were not sent in between: of each turn, in how many words.
STEPS = st.lists(st.dictionaries(st.sampled_from("abc"), st.booleans()), max_size=6)


@given(STEPS, st.sampled_from([512, 1024**2]))
def test_what_several_steps_say_of_a_turn_is_read_in_order(
    steps: list[dict[str, bool]], payload_bytes_max: int
) -> None:
    unsent, said = Unsent(), dict.fromkeys("abc", 0)
    for step in steps:
        for name in (name for name, has_more in step.items() if has_more):
            unsent.add_delta(TurnDelta(turn_id=TurnId(name), attempt=1, index=said[name]))
        plain = [name for name, has_more in step.items() if not has_more]
        unsent.add_tokens([(TurnId(name), 1, said[name], 7) for name in plain])
        said.update({name: said[name] + 1 for name in step})
    sent = [decode(StepOutput, encode(each)) for each in unsent.messages(payload_bytes_max)]
    read = [each for output in sent for each in output.all()]
    for name, num in said.items():
        assert [each.index for each in read if each.turn_id == name] == list(range(num))


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
