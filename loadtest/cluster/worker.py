"""A worker of a simulated cluster, on a GPU that has only costs."""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

from loadtest.cluster.device import CostDevice
from loadtest.cluster.migration import Migration
from loadtest.cluster.options import Without
from loadtest.cluster.plant import Plant
from loadtest.cluster.pools import POOLS, PinnedPool
from loadtest.cluster.shells.engine_worker import EngineWorker
from loadtest.cluster.shells.kv_process import Kvstore
from loadtest.cluster.stats import Stats
from loadtest.policies.placement import HistoryFrom
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.timeline import MS
from services.worker.core.costs.costs import StepCosts
from services.worker.core.effects import Ended, StageTurn
from services.worker.core.engine_limits import EngineLimits
from services.worker.core.kv.pages import PagePool
from services.worker.core.kv.staged import Staged
from services.worker.core.splitting import Unsent
from services.worker.core.step import StepResult
from services.worker.core.turns.intake import ModelShape
from shared.blocks import BlockKey
from shared.hints import HintShares
from shared.ids import TurnId
from shared.wire.messages import KvStage, TurnDelta

STEPS_KNOWN = 20
STEPS_KEPT = 16
PREFILL_TOKENS_MAX = 2048
TURNS_RUNNING_MAX = 256


class ClusterWorker(EngineWorker):
    """Args:
    limits: of the engine; with the profile's own model length.
    """

    def __init__(
        self, deployment: SimDeployment, kvstore: Kvstore, number: int, plant: Plant, stats: Stats,
        *, without: frozenset[Without], history_from: HistoryFrom, migration: Migration | None,
    ) -> None:  # fmt: skip
        super().__init__(deployment, kvstore, number)
        self.new_pool = next((POOLS[each] for each in POOLS if each in without), PagePool)
        self._drift_ppm = 0  # else it wakes a little early, and once more
        self._plant = plant
        self._stats = stats
        self._history_from = history_from
        self._migration = migration
        self._kept: dict[TurnId, list[TurnDelta]] = {}
        self._num_kept = 0  # steps of which that is
        model = deployment.model
        self._limits = EngineLimits(
            max_model_len=model.max_model_len,
            prefill_tokens_max=PREFILL_TOKENS_MAX // plant.grain,
            turns_running_max=TURNS_RUNNING_MAX,
            layerwise="layerwise" not in without,
        )
        self._num_pages = plant.num_layers * plant.pool_blocks
        self._shape = ModelShape(
            fingerprint=model.fingerprint,
            num_layers=model.num_layers,
            block_tokens=model.block_tokens,
            vocab_size=model.vocab_size,
        )

    def on_start(self) -> None:
        super().on_start()
        if isinstance(self.core.pool, PinnedPool):  # and as much as there is
            num_pages = self.core.pool.num_pages
            self.core.stager.hints.shares = HintShares(num_pages, num_pages)

    def check(self) -> None:
        """Too dear after every event; at the end all is checked."""

    def new_device(self) -> Any:
        return CostDevice(self, self._plant)

    def _teach(self, costs: StepCosts) -> None:
        """A worker that has served for a while."""
        profile = self._plant.profile
        for number in range(STEPS_KNOWN):
            rows = 1 + number % 8
            costs.on_step(0, rows, int(profile.step_ms(0, rows) * MS))
        num_tokens = self._limits.prefill_tokens_max
        took_ns = int(profile.step_ms(num_tokens, 0) * MS)
        costs.on_step(num_tokens, 0, took_ns)
        self.core.estimates.on_prefill(num_tokens, took_ns)

    def on_runs_loaded(self, good: list[int], bad: list[int]) -> None:
        """Loads into these pool pages ended."""
        self.feed(self.core.on_loaded(good, bad, self.now_ns))

    def on_step(self, result: StepResult) -> None:
        self.feed(self.core.on_step(result, self.now_ns))

    def _flush(self) -> None:
        """Tokens that are neither first nor last are sent some steps together: no figure depends on
        when they come.
        """
        is_due = False
        unsent, self._unsent = self._unsent, defaultdict(Unsent)
        for delta in (each for of_one in unsent.values() for each in of_one.all()):
            if delta.cached_in:
                self._stats.on_cached(delta.turn_id, delta.cached_in)
            kept = self._kept.get(delta.turn_id)
            if kept is None or kept[-1].attempt != delta.attempt:
                self._kept[delta.turn_id] = [delta]
            else:
                kept.append(delta)
            is_due |= not delta.index or delta.finish is not None
        self._num_kept += bool(unsent)
        if is_due or self._num_kept >= STEPS_KEPT:
            to_frontend = self._unsent[next(iter(unsent))]
            for deltas in self._kept.values():
                to_frontend.add_delta(_together(deltas))
            self._kept, self._num_kept = {}, 0
        super()._flush()

    def _wake(self, at_ns: int) -> None:
        if self._wake_at_ns == at_ns:  # and no earlier one has taken its place
            super()._wake(at_ns)

    def _stage_turn(self, effect: StageTurn) -> None:
        """A turn that was moved while it ran finds its KV wherever that is."""
        kv_at = None if self._migration is None else self._migration.on_moved(effect.turn_id)
        if kv_at is not None:
            super()._stage_turn(replace(effect, kv_at=kv_at))
            return
        if self._history_from == "any":
            super()._stage_turn(effect)
            return

        def then(staged: Staged | None) -> None:
            if staged is not None and staged.num_here < staged.num_blocks:
                self._release(ticket=staged.ticket, num_kept=staged.num_here)
                staged = replace(staged.head(staged.num_here), ready_in_ns=[], coming_from=None)
                staged = staged if staged.num_blocks else None
            self.feed(self.core.on_staged(effect.turn_id, effect.attempt, staged, self.now_ns))

        if self._history_from == "pool":
            self.later(0, lambda: then(None))
        else:
            self._stage(self.link.stage_turn(replace(effect, kv_at={})), effect.keys, then)

    def _stage(self, message: KvStage, keys: list[BlockKey] | None, then: Any) -> None:
        """What it costs the host comes on top."""

        def later(staged: Staged | None) -> None:
            num_blocks = 0 if staged is None else staged.num_blocks
            delay_ns = round(num_blocks * self._plant.stage_block_ns)
            self.later(delay_ns, partial(then, staged))

        super()._stage(message, keys, later)

    def _on_ended(self, ended: Ended) -> None:
        if ended.account is not None:
            self._stats.on_account(ended.end.turn_id, ended.account)
        super()._on_ended(ended)


def _together(deltas: list[TurnDelta]) -> TurnDelta:
    """What these say, one behind the other."""
    if len(deltas) == 1:
        return deltas[0]
    tokens = [token for delta in deltas for token in delta.tokens]
    return replace(deltas[-1], index=deltas[0].index, tokens=tokens)
