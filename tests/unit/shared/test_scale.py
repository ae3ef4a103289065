"""docs/scale.md says how large messages and records are: as large as they are."""

import math
import re
from pathlib import Path

import pytest

from services.scheduler.core.turns.placement.symphony import Symphony
from services.scheduler.core.turns.placer import WORKERS_OF_HOST_MAX
from shared import messages as m
from shared.blocks import BLOCK_TOKENS, KEY_BYTES, PREFIX_BLOCKS_MAX
from shared.ids import FrontendId, HostId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.locations import HOSTS_SENT_MAX
from shared.sessions import SessionRecord, TextMark, encode_record

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "scale.md").read_text()
SESSION, MODEL = SessionId("order-17/engineer-abcdef"), ModelId("llama-3.1-8b")
WORKER, HOST = WorkerId("host-12-w3"), HostId("host-12")
AGENT = m.AgentRef(agent="shop/engineer", workflow_id="order-17")
SUBMIT = m.TurnSubmit(
    turn_id=TurnId("t-0123456789abcdef"),
    frontend_id=FrontendId("frontend-0123"),
    model_id=MODEL,
    num_prompt_tokens=2000,
    session_id=SESSION,
    kv_at={HOST: 31},
    request_id="req-0123456789",
)
CARD = m.ModelCard(
    model_id=MODEL, source="meta-llama/Llama-3.1-8B", fingerprint="f" * 32, max_model_len=131072,
    block_tokens=BLOCK_TOKENS,
)  # fmt: skip


def refs(num: int) -> list[m.TurnRef]:
    name = "t-0123456789abc{:03d}"
    return [
        m.TurnRef(turn_id=TurnId(name.format(at)), attempt=4096, num_generated=100)
        for at in range(num)
    ]


def report(num: int) -> m.WorkerReport:
    return m.WorkerReport(
        worker_id=WORKER, incarnation="inc-0123456789", seq=1234, host_id=HOST, state="ready",
        models=[CARD], turns=refs(num),
    )  # fmt: skip


def output(num: int) -> m.StepOutput:
    return m.StepOutput(
        deltas=[
            m.TurnDelta(turn_id=ref.turn_id, attempt=4096, index=17, tokens=[1234])
            for ref in refs(num)
        ]
    )


ROWS = {
    "`TurnsSubmit`, a turn without its prompt": m.TurnsSubmit(turns=[SUBMIT]),
    "`TurnsStart`, a turn without its prompt": m.TurnsStart(turns=[m.start_of(SUBMIT, 4096)]),
    "`TurnArrived`": m.TurnArrived(
        session_id=SESSION, turn_id=SUBMIT.turn_id, worker_id=WORKER
    ),
    "`TurnsEnded`, a turn": m.TurnsEnded(
        turns=[m.TurnEnd(turn_id=SUBMIT.turn_id, attempt=4096, reason="stop")]
    ),
    "`TurnsPlaced`, a turn": m.TurnsPlaced(
        shard=3, turns=[m.PlacedTurn(turn_id=SUBMIT.turn_id, worker_id=WORKER, num_tokens=1234)]
    ),
    "`WorkerReport`, nothing runs": report(0),
    "`WorkerReport`, 64 turns": report(64),
    "`StepOutput`, a token": output(1),
    "`StepOutput`, tokens of 32 turns": output(32),
    "`Advisory`": m.Advisory(session_id=SESSION, model_id=MODEL, expected_arrival=2.5),
    "`ExpectSession`": m.ExpectSession(session_id=SESSION, model_id=MODEL),
    "`ExpectSession` of an agent whose prompts share 32 blocks": m.ExpectSession(
        session_id=m.prefix_session(AGENT),
        model_id=MODEL,
        prefix=m.AgentPrefix(agent=AGENT, keys="5a" * KEY_BYTES * 32),
    ),
    "`AgentTurnLeft` of a prompt of 128 blocks or more": m.AgentTurnLeft(
        agent=AGENT, session_id=SESSION, model_id=MODEL,
        keys="5a" * KEY_BYTES * PREFIX_BLOCKS_MAX,
    ),
    "`TurnsForeseen` of one turn": m.TurnsForeseen(
        turns=[
            m.ForeseenTurn(
                advisory=m.Advisory(
                    session_id=SESSION, expected_arrival=2.5, agent=AGENT.agent,
                    workflow_id=AGENT.workflow_id, ttl_ms=30_000,
                ),
                chance=0.9,
            )
        ]
    ),
    "`Prefetch`": m.Prefetch(session_id=SESSION, model_id=MODEL, num_tokens=2000),
}  # fmt: skip


def told(row: str) -> float:
    """The number in the second column of the page's row of this name."""
    found = re.search(rf"^\| {re.escape(row)} \| ([\d,]+) ", PAGE, re.MULTILINE)
    assert found is not None, f"no row {row!r}"
    return float(found[1].replace(",", ""))


@pytest.mark.parametrize("row", ROWS)
def test_messages_are_as_large_as_the_page_says(row: str) -> None:
    assert len(m.encode(ROWS[row])) == pytest.approx(told(row), rel=0.1)


def test_what_is_counted_from_the_rows_is_counted_right() -> None:
    bytes_of_report = told("`WorkerReport`, 64 turns")
    reports = 2 * 1_000 * (250 + 4)
    gigabytes = reports * bytes_of_report / 1e9
    assert f"{reports:,} reports a second and {gigabytes:.1f} GB/s" in PAGE
    reports = 2 * 10_000 * (2_500 + 40)
    gigabytes = reports * bytes_of_report / 1e9
    assert f"{reports / 1e6:.1f} million and {gigabytes:.0f} GB/s" in PAGE


def test_a_house_of_640_is_counted_right() -> None:
    tokens, turns, reports = 640 * 64 * 25, 640 * 5, 2 * 640
    assert f"{turns:,} turns and {tokens:,} tokens a second,\nand {reports:,} reports." in PAGE
    gigabytes = tokens * told("`StepOutput`, a token") / 1e9
    assert f"{tokens:,} messages, {gigabytes:.1f} GB/s" in PAGE
    heard = reports * (160 + 4)
    gigabytes = heard * told("`WorkerReport`, 64 turns") / 1e9
    assert f"reports to 164: {round(heard, -4):,} messages, {gigabytes:.1f} GB/s" in PAGE
    on_frontends = tokens * 105e-6
    assert (
        f"of 105 µs are {on_frontends:.0f} cores, turns {math.ceil(turns * 0.72e-3)} more" in PAGE
    )
    share = (on_frontends + turns * 0.72e-3) / 160 + reports * 0.1e-3
    assert f"two on each host, at {share:.1f} of a core" in PAGE
    own, others, heard_s = turns / 4 * 0.33e-3, turns * 3 / 4 * 0.09e-3, reports * 0.16e-3
    assert f"| {own + others + heard_s:.2f} of a core each" in PAGE
    assert f"a second {own:.2f}, what the others have {others:.2f}, reports {heard_s:.2f}" in PAGE
    assert f"one alone would need {turns * 0.33e-3 + heard_s:.1f} |" in PAGE


def test_nothing_is_left_open() -> None:
    assert "**open**" not in PAGE.lower()


def test_a_decision_looks_at_as_many_workers_as_the_page_says() -> None:
    some = Symphony.num_looked_at
    assert some is not None
    assert f": {some + 1 + HOSTS_SENT_MAX * WORKERS_OF_HOST_MAX} at most" in PAGE


@pytest.mark.parametrize("num_tokens", [500, 2_000, 8_000, 32_000])
def test_records_are_as_large_as_the_page_says(num_tokens: int) -> None:
    num_blocks = -(-num_tokens // BLOCK_TOKENS)
    mark = TextMark(12_345, "5" * 32)
    record = SessionRecord(
        session_id=SESSION, tenant=TenantId("some-tenant"), model_id=MODEL, fingerprint="f" * 32,
        tokens=m.pack_ints(list(range(num_tokens))), block_keys="5a" * KEY_BYTES * num_blocks,
        prompt=mark, reply=mark, stripped_reply=mark, num_tokens=num_tokens, num_turns=12,
        last_used=1.8e9, expires=1.8e9,
    )  # fmt: skip
    size = len(encode_record(record))
    row = f"| {num_tokens:,} | {_rounded(size):,} | {_rounded(1e9 / size):,} |"
    assert row in PAGE, row


def _rounded(number: float) -> int:
    """To two places."""
    scale = 10 ** (len(str(int(number))) - 2)
    return int(number / scale + 0.5) * int(scale)
