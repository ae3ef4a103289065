"""Messages as long as real ones, for `symphony bench core`."""

from collections.abc import Sequence

from shared.blocks import BLOCK_TOKENS
from shared.ids import DEFAULT_TENANT, FrontendId, HostId, ModelId, SessionId, TurnId, WorkerId
from shared.wire.messages import (
    ModelCard,
    ModelSpeeds,
    StepOutput,
    TurnRef,
    TurnSubmit,
    WorkerReport,
)
from shared.wire.shards import turn_id_in

MODEL = ModelId("llama-3.1-8b")
FRONTEND = FrontendId("fe-0-0123456789abcdef")
WORKERS_A_HOST = 8
PROMPT_TOKENS = 2000
PROMPT_BLOCKS = PROMPT_TOKENS // BLOCK_TOKENS
INTERVAL_NS = 500_000_000

CARD = ModelCard(
    model_id=MODEL,
    source="meta-llama/Llama-3.1-8B",
    fingerprint="f" * 32,
    max_model_len=131_072,
    vocab_size=128_256,
)
SPEEDS = ModelSpeeds(
    model_id=MODEL,
    token_ms=0.1,
    step_ms=10.0,
    row_ms=0.05,
    mean_rows=32,
    block_bytes=BLOCK_TOKENS * 131_072,
    load_bytes_per_s=2e10,
    source_bytes_per_s=5e9,
)


def host_of(worker: int) -> HostId:
    """The host that a worker is on, by its number."""
    return HostId(f"host-{worker // WORKERS_A_HOST}")


def worker_id(worker: int) -> WorkerId:
    """Its name, by its number."""
    return WorkerId(f"{host_of(worker)}-w{worker % WORKERS_A_HOST}")


def turn_id(name: str, session_id: SessionId) -> TurnId:
    """Of a turn of this session."""
    return turn_id_in(f"turn-{name:>016}", DEFAULT_TENANT, session_id)


def report(
    worker: int, seq: int, turns: Sequence[TurnRef], *, with_speeds: bool = False
) -> WorkerReport:
    """A worker's, with all that it runs."""
    return WorkerReport(
        worker_id=worker_id(worker),
        incarnation="inc-0123456789",
        seq=seq,
        host_id=host_of(worker),
        state="ready",
        models=[CARD],
        turns=list(turns),
        has_kvstore=True,
        num_running=len(turns),
        num_pages=1 << 20,
        num_pages_free=1 << 18,
        num_pages_clean=1 << 19,
        interval_ns=INTERVAL_NS,
        turns_running_max=256,
        speeds=[SPEEDS] if with_speeds else [],
    )


def submit(name: str, session_id: SessionId, kv_at: Sequence[HostId] = ()) -> TurnSubmit:
    """A session's turn, whose KV is on these hosts; on each one block less than on the one before,
    so that all are looked at."""
    return TurnSubmit(
        turn_id=turn_id(name, session_id),
        frontend_id=FRONTEND,
        model_id=MODEL,
        num_prompt_tokens=PROMPT_TOKENS,
        session_id=session_id,
        request_id="req-0123456789abcdef",
        kv_at={host_id: PROMPT_BLOCKS - at for at, host_id in enumerate(kv_at)},
    )


def output(turns: Sequence[TurnId], index: int, token: int, attempt: int = 1) -> StepOutput:
    """A step's, a token of each of these turns."""
    return StepOutput(tokens=[(turn, attempt, index, token) for turn in turns])
