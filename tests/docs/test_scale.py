"""The sizes of messages and records in docs/scale.md are those of the code."""

import math
import re
from pathlib import Path

import pytest

from services.scheduler.core.placement.least_cost import LeastCost
from services.scheduler.core.turns.placer import WORKERS_OF_HOST_MAX
from shared.blocks import BLOCK_TOKENS, KEY_BYTES
from shared.ids import FrontendId, HostId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.locations import HOSTS_SENT_MAX
from shared.wire import messages as m
from shared.wire.sessions import SessionRecord, TextMark, encode_record

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "scale.md").read_text()
PAGE = " ".join(TEXT.split())
SESSION, MODEL = SessionId("order-17/engineer-abcdef"), ModelId("llama-3.1-8b")
WORKER, HOST = WorkerId("host-12-w3"), HostId("host-12")
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
    return m.StepOutput(tokens=[(ref.turn_id, 4096, 17, 1234) for ref in refs(num)])


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
    "`Prefetch`": m.Prefetch(session_id=SESSION, model_id=MODEL, num_tokens=2000),
}  # fmt: skip


def size_of(row: str) -> float:
    """The number in the second column of the page's row of this name."""
    found = re.search(rf"^\| {re.escape(row)} \| ([\d,]+) ", TEXT, re.MULTILINE)
    assert found is not None, f"no row {row!r}"
    return float(found[1].replace(",", ""))


@pytest.mark.parametrize("row", ROWS)
def test_messages_are_as_large_as_the_page_says(row: str) -> None:
    assert len(m.encode(ROWS[row])) == pytest.approx(size_of(row), rel=0.1)


def test_what_is_counted_from_the_rows_is_counted_right() -> None:
    bytes_of_report = size_of("`WorkerReport`, 64 turns")
    reports = 2 * 1_000 * (250 + 4)
    gigabytes = reports * bytes_of_report / 1e9
    assert f"{reports:,} reports a second and {gigabytes:.1f} GB/s" in PAGE
    reports = 2 * 10_000 * (2_500 + 40)
    gigabytes = reports * bytes_of_report / 1e9
    assert f"{reports / 1e6:.1f} million and {gigabytes:.0f} GB/s" in PAGE


def test_a_deployment_of_640_is_counted_right() -> None:
    tokens, turns, reports = 640 * 64 * 25, 640 * 5, 2 * 640
    assert f"{turns:,} turns and {tokens:,} tokens a second, and {reports:,} reports." in PAGE
    gigabytes = tokens * size_of("`StepOutput`, a token") / 1e9
    assert f"{tokens:,} token messages, {gigabytes:.1f} GB/s" in PAGE
    received = reports * (160 + 4)
    gigabytes = received * size_of("`WorkerReport`, 64 turns") / 1e9
    assert f"to 164 receivers: {round(received, -4):,} messages, {gigabytes:.1f} GB/s" in PAGE
    on_frontends = tokens * 105e-6
    turn_cores, report_share = turns * 0.72e-3, reports * 0.1e-3
    share = (on_frontends + turn_cores) / 160 + report_share
    assert (
        f"of 105 µs are {on_frontends:.0f} cores, turns {math.ceil(turn_cores)} more, "
        f"reports {report_share:.2f} each: {share:.1f} of a core"
    ) in PAGE
    own, others, reported = turns / 4 * 0.33e-3, turns * 3 / 4 * 0.09e-3, reports * 0.16e-3
    assert (
        f"{own + others + reported:.2f} of a core each: turns {own:.2f}, "
        f"others' turns {others:.2f}, reports {reported:.2f}"
    ) in PAGE


def test_a_decision_looks_at_as_many_workers_as_the_page_says() -> None:
    num = LeastCost.num_looked_at
    assert num is not None
    assert f": {num + 1 + HOSTS_SENT_MAX * WORKERS_OF_HOST_MAX} at most" in PAGE


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
