"""Live migration: a running turn moves from an overloaded worker to another one. The placement
policy decides when; the default policy never migrates, since it places turns evenly.

Source: Llumnix, section 4.2, as far as `Migrate` says.
"""

from dataclasses import replace

from services.scheduler.core.turns.placer import Placer
from services.scheduler.core.turns.quarantine import Quarantine
from services.scheduler.core.turns.records import Turn, Worker
from services.scheduler.core.turns.speeds import DEFAULT_SPEEDS
from services.scheduler.core.turns.turn_table import TurnTable
from shared.locations import BLOCKS_MAX

MOVES_MAX = 3  # placements of a turn, after which it stays


def relieve(
    worker: Worker, placer: Placer, table: TurnTable, quarantine: Quarantine, now_ns: int
) -> None:
    """Move at most one of the worker's running turns."""
    for model_id in sorted(worker.models):
        to = placer.relief_of(worker, model_id)
        turn = None if to is None else _cheapest(worker, model_id, quarantine)
        if to is None or turn is None:
            continue
        submit = turn.submit
        assert submit is not None
        table.cancel_attempt(worker, turn.ref)
        table.unassign(turn)
        block_tokens = worker.speeds.get(model_id, DEFAULT_SPEEDS).block_tokens
        num_blocks = min(_num_tokens(turn) // block_tokens + 1, BLOCKS_MAX)
        submit = replace(submit, kv_at={worker.report.host_id: num_blocks})
        table.start(turn, submit, to, "relief", now_ns, kv_from="any")
        return


def _cheapest(worker: Worker, model_id: str, quarantine: Quarantine) -> Turn | None:
    """The turn to move: one that runs, of the lowest priority the one with the fewest tokens."""
    movable = [
        turn
        for turn in worker.turns.values()
        if turn.submit is not None
        and turn.submit.model_id == model_id
        and turn.num_generated
        and turn.num_placements < MOVES_MAX
        and not quarantine.is_quarantined(turn)
    ]
    return min(movable, key=_order, default=None)


def _order(turn: Turn) -> tuple[int, int, str]:
    assert turn.submit is not None
    return turn.submit.priority, _num_tokens(turn), turn.turn_id


def _num_tokens(turn: Turn) -> int:
    assert turn.submit is not None
    return turn.submit.num_prompt_tokens + turn.num_generated
