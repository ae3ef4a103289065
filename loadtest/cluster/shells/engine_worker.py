"""A worker of a simulated cluster without its device: the production cores in a shell."""

from abc import abstractmethod
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.cluster.shells.kv_process import Kvstore
from loadtest.sim.process import Process
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.model import LORA_CARD
from loadtest.sim.timeline import MS, SECOND
from services.worker.core.costs.costs import StepCosts
from services.worker.core.costs.speeds import SpeedReports
from services.worker.core.effects import (
    BuildImage,
    CallBack,
    CommitBlocks,
    Effect,
    Emit,
    EmitTokens,
    Ended,
    LeasePages,
    LoadPages,
    Prefetched,
    ReleaseTicket,
    ReturnPages,
    StageImage,
    StageSession,
    StageTurn,
    StoreBlocks,
    TrimTicket,
)
from services.worker.core.engine.engine import EngineCore
from services.worker.core.engine.status import status_of
from services.worker.core.engine_limits import EngineLimits
from services.worker.core.kv.answers import gone_blocks
from services.worker.core.kv.kv_link import KvLink
from services.worker.core.kv.pages import PagePool
from services.worker.core.kv.staged import Staged
from services.worker.core.pulling import Pull, Pulling
from services.worker.core.splitting import Unsent
from services.worker.core.step import StepResult
from services.worker.core.turns.intake import ModelShape, expected_turn, take_in
from services.worker.core.turns.outcome import refuse_start
from shared.blocks import BlockKey
from shared.errors import MalformedMessage, SymphonyError
from shared.ids import FrontendId, SessionId, TenantId, TurnId, WorkerId
from shared.owners import owner_key
from shared.wire.messages import (
    Empty,
    KvOpened,
    KvStage,
    ModelCard,
    Prefetch,
    PrefetchDrop,
    Prompt,
    PromptPull,
    PromptReply,
    TurnCancel,
    TurnEnd,
    TurnPrefetched,
    TurnRef,
    TurnsEnded,
    TurnsStart,
    TurnStart,
    WorkerReport,
)
from shared.wire.subjects import (
    KV_COMMIT,
    KV_LEASE,
    KV_OPEN,
    KV_RELEASE,
    KV_RENEW,
    KV_STAGE,
    PROMPT_PULL,
    STEP_OUTPUT,
    TURN_PREFETCHED,
    TURNS_ENDED,
    WORKER_CANCEL,
    WORKER_PING,
    WORKER_PREFETCH,
    WORKER_PREFETCH_DROP,
    WORKER_REPORT,
    WORKER_START,
)

REPORT_EVERY_NS = 500 * MS
RENEW_EVERY_NS = SECOND
FAR_NS = 3600 * SECOND  # so long before an expected turn nothing is done for it
REOPEN_AFTER_NS = 500 * MS
PAYLOAD_BYTES_MAX = 1 << 20  # as NATS has it


class EngineWorker(Process):
    """Attributes:
    core: the engine, of this life.
    device: pool memory and the forward pass, of this life.
    """

    deployment: SimDeployment
    new_pool: type[PagePool] = PagePool
    _limits: EngineLimits
    _num_pages: int
    _shape: ModelShape

    def __init__(self, deployment: SimDeployment, kvstore: Kvstore, number: int) -> None:
        super().__init__(deployment, f"worker-{number}")
        self.host_id = kvstore.host_id
        self.worker_id = WorkerId(f"{self.host_id}-w{number}")
        self._kvstore = kvstore
        self._model = deployment.model

    def on_start(self) -> None:
        model = self._model
        self._incarnation = f"{self.name}-{self.life}"
        self.is_touched = True
        self._num_reports = 0
        self._telling = SpeedReports()
        self._num_opens = 0
        pool = self.new_pool(self._num_pages, model.num_layers, self.deployment.eviction)
        self.core = EngineCore(
            self._limits, pool, model.page_bytes, frozenset({model.end_token}),
            model.block_tokens, model.fingerprint,
        )  # fmt: skip
        self._teach(self.core.costs)
        self.device = self.new_device()
        self.core.estimates.load_bytes_per_s = model.page_bytes * SECOND / self.device.page_ns
        self.link = KvLink(self.worker_id, model.fingerprint, model.num_layers, model.page_bytes)
        self.pulling = Pulling()
        self._not_wanted: set[tuple[TurnId, int]] = set()  # cancelled before their prompts came
        self._unsent: dict[FrontendId, Unsent] = defaultdict(Unsent)
        self._ends: list[TurnEnd] = []
        self._arrives_at_ns: dict[tuple[TenantId, SessionId], int] = {}  # of announced turns
        self._wake_at_ns: int | None = None
        self._open()
        self.later(self.deployment.random.randrange(200 * MS), self._get_ready)

    @abstractmethod
    def new_device(self) -> Any:
        """For a new life."""

    @abstractmethod
    def _teach(self, costs: StepCosts) -> None:
        """What it knows of its speed from the beginning."""

    def _get_ready(self) -> None:
        wires, me = self.deployment.wires, self.worker_id
        wires.listen(self, WORKER_START, lambda message, _: self._on_starts(message), me)
        wires.listen(self, WORKER_CANCEL, lambda message, _: self._on_cancel(message), me)
        wires.listen(self, WORKER_PREFETCH, lambda message, _: self._on_prefetch(message), me)
        wires.listen(
            self, WORKER_PREFETCH_DROP, lambda message, _: self._on_prefetch_drop(message), me
        )
        wires.listen(self, WORKER_PING, lambda _, reply: reply(Empty()), me)
        self._report_for_ever()

    # What comes over the bus.

    def _on_starts(self, message: TurnsStart) -> None:
        for start in message.turns:
            self._not_wanted.discard((start.turn_id, start.attempt))
            prompt = self.pulling.on_start(start, self.now_ns)
            if prompt is not None:
                self._on_prompt(start, prompt)
            else:
                self.later(0, self._pull)

    def _pull(self) -> None:
        for pull in self.pulling.take_pulls():
            self._ask_for(pull)

    def _ask_for(self, pull: Pull) -> None:
        self.deployment.wires.request(
            self, PROMPT_PULL, PromptPull(turns=pull.refs),
            partial(self._on_pulled, pull), partial(self._on_unpulled, pull),
            ident=pull.frontend_id,
        )  # fmt: skip

    def _on_pulled(self, pull: Pull, reply: Any) -> None:
        for start, prompt in self.pulling.on_reply(pull, reply):
            self._on_prompt(start, prompt)
        if (rest := self.pulling.again(pull)) is not None:
            self._ask_for(rest)

    def _on_unpulled(self, pull: Pull, _: SymphonyError) -> None:
        self._on_pulled(pull, None)

    def _on_prompt(self, start: TurnStart, prompt: Prompt | None) -> None:
        is_wanted = (start.turn_id, start.attempt) not in self._not_wanted
        assert is_wanted, f"{start.turn_id} was cancelled before its prompt came"
        if prompt is None or prompt.gone:
            end = TurnEnd(turn_id=start.turn_id, attempt=start.attempt, reason="cancelled")
            self.feed([Ended(end)])
            return
        try:
            turn = take_in(start, prompt, self._shape, self.now_ns)
        except SymphonyError as error:
            self.feed(refuse_start(start, error))
            return
        self.feed(self.core.on_turn(turn, self.now_ns))

    def _on_cancel(self, cancel: TurnCancel) -> None:
        self._not_wanted.update(
            (ref.turn_id, ref.attempt)
            for ref in self.pulling.refs()
            if ref.turn_id == cancel.turn_id and not 0 < cancel.attempt < ref.attempt
        )
        self.pulling.on_cancel(cancel.turn_id, cancel.attempt)
        self.feed(self.core.on_cancel(cancel.turn_id, cancel.attempt, cancel.num_kept))

    def _on_prefetch(self, prefetch: Prefetch) -> None:
        if (running := prefetch.running) is None:
            self._on_expected(prefetch, None)
            return
        pull = PromptPull(turns=[TurnRef(turn_id=running.turn_id)], is_ahead=True)
        self.deployment.wires.request(
            self, PROMPT_PULL, pull, partial(self._on_looked, prefetch), lambda error: None,
            ident=running.frontend_id,
        )  # fmt: skip

    def _on_looked(self, prefetch: Prefetch, reply: PromptReply) -> None:
        if not (prompt := reply.prompts[0]).gone:
            self._on_expected(prefetch, prompt)

    def _on_expected(self, prefetch: Prefetch, prompt: Prompt | None) -> None:
        expected = expected_turn(prefetch, self._shape, self.now_ns, prompt)
        self._arrives_at_ns[(prefetch.tenant, prefetch.session_id)] = expected.arrives_at_ns
        self.feed(self.core.on_expected(expected, self.now_ns))

    def _on_prefetch_drop(self, drop: PrefetchDrop) -> None:
        self.feed(self.core.on_unexpected(owner_key(drop.tenant, drop.session_id)))

    def _report_for_ever(self) -> None:
        self.later(REPORT_EVERY_NS, self._report_for_ever)
        self.report()

    def report(self) -> None:
        """Tell the schedulers what is held here."""
        if not self.deployment.wires.has_connection(self):
            return
        self._num_reports += 1
        core, model, status = self.core, self._model, status_of(self.core)
        card = ModelCard(
            model_id=model.model_id, source="", fingerprint=model.fingerprint,
            max_model_len=core.tokens_max, block_tokens=model.block_tokens, lora=LORA_CARD,
        )  # fmt: skip
        pool = status.pool
        report = WorkerReport(
            worker_id=self.worker_id,
            incarnation=self._incarnation,
            seq=self._num_reports,
            host_id=self.host_id,
            state="ready",
            models=[card],
            turns=[*self.pulling.refs(), *core.refs()],
            num_running=status.num_running,
            num_waiting=status.num_waiting,
            num_waiting_tokens=status.num_waiting_tokens,
            num_pages=pool.num_pages,
            num_pages_free=pool.num_free,
            num_pages_clean=pool.num_takeable,
            num_pages_dirty=pool.num_pages - pool.num_free - pool.num_takeable,
            interval_ns=REPORT_EVERY_NS,
            turns_running_max=core.limits.turns_running_max,
            rooms=[pool.room(model.model_id, core.pool.num_layers, core.num_turns)],
            speeds=self._telling.next([core.speeds(model.model_id)]),
        )
        self.deployment.wires.send(self, WORKER_REPORT, report)

    # The engine.

    def feed(self, effects: list[Effect]) -> None:
        """Perform what an event led to, then plan the next step if it is time."""
        self.is_touched, now_ns = True, self.now_ns
        self._perform(effects)
        at_ns = self.core.plan_at_ns()
        while at_ns is not None and at_ns <= now_ns:
            plan, effects = self.core.plan_step(now_ns)
            self._perform(effects)
            if plan is None:
                break
            planned = self.core.flights[-1]
            assert planned.plan is plan
            self.device.start(plan, planned.turns)
            at_ns = self.core.plan_at_ns()
        self._flush()
        deadline_ns = self.core.next_deadline_ns()
        if self.device.is_busy:
            is_due = at_ns is not None and at_ns <= now_ns  # and nothing more can run now
            deadline_ns = None if is_due else at_ns
        if deadline_ns is not None and (self._wake_at_ns is None or deadline_ns < self._wake_at_ns):
            self._wake_at_ns = deadline_ns
            self.later(max(deadline_ns - now_ns, 0) + 1, partial(self._wake, deadline_ns))

    def on_step(self, result: StepResult) -> None:
        """The device is done with the step."""
        self.is_touched = True
        self._perform(self.core.on_step(result, self.now_ns))
        self.feed([])

    def on_loaded(self, page: int, *, is_good: bool) -> None:
        """A load into this pool page ended."""
        good, bad = ([page], []) if is_good else ([], [page])
        self.feed(self.core.on_loaded(good, bad, self.now_ns))

    def on_called_back(self, pages: list[int]) -> None:
        """Nothing is loaded into these pool pages."""
        self.feed(self.core.on_called_back(pages))

    def on_stored(self, checksums: dict[int, list[int]]) -> None:
        """Writes are over."""
        self.feed(self.core.on_stored(checksums))

    def _wake(self, at_ns: int) -> None:
        if self._wake_at_ns == at_ns:
            self._wake_at_ns = None
        self.feed([])

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case EmitTokens():
                    self._unsent[effect.frontend_id].add_tokens(effect.tokens)
                case Emit():
                    self._unsent[effect.frontend_id].add_delta(effect.delta)
                case Ended():
                    self._on_ended(effect)
                case Prefetched():
                    self._on_prefetched(effect)
                case LoadPages():
                    self.device.load(effect.loads)
                case CallBack():
                    self.device.call_back(effect.pool_pages)
                case StageTurn():
                    self._stage_turn(effect)
                case StageImage():
                    self._stage_image(effect)
                case BuildImage():
                    self.device.build(effect)
                case StoreBlocks():
                    self.device.store(effect.writes, effect.epoch)
                case CommitBlocks():
                    self._commit(effect)
                case LeasePages():
                    self._lease(effect.num_pages)
                case ReleaseTicket():
                    self._release(ticket=effect.ticket)
                case TrimTicket():
                    self._release(ticket=effect.ticket, num_kept=effect.num_blocks)
                case ReturnPages():
                    self._release(pages=effect.arena_pages)
                case StageSession():
                    self._stage_session(effect)

    def _on_prefetched(self, prefetched: Prefetched) -> None:
        if prefetched.running is not None and not prefetched.adapter_hash:
            message = TurnPrefetched(
                turn_id=prefetched.running, worker_id=self.worker_id,
                num_blocks=prefetched.num_here,
            )  # fmt: skip
            self.deployment.wires.send(self, TURN_PREFETCHED, message)

    def _on_ended(self, ended: Ended) -> None:
        self._ends.append(ended.end)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, defaultdict(Unsent)
        for frontend_id, of_frontend in unsent.items():
            for output in of_frontend.messages(PAYLOAD_BYTES_MAX):
                self.deployment.wires.send(self, STEP_OUTPUT, output, frontend_id)
        if self._ends:
            ends, self._ends = self._ends, []
            message = TurnsEnded(turns=ends)
            self.deployment.wires.send(self, TURNS_ENDED, message)

    # The kvstore.

    def _open(self) -> None:
        self.device.detach()
        self._num_opens += 1
        incarnation = f"{self._incarnation}-{self._num_opens}"

        def on_opened(opened: KvOpened) -> None:
            try:
                arena = self._kvstore.attach(Path(opened.arena_path))
                self._kvstore.lock(Path(opened.lease_path), self)
            except FileNotFoundError:
                on_error(None)
                return
            self.link.on_opened(incarnation, arena.num_pages)
            self.device.attach(arena, self.link.epoch)
            self.core.write_behind.connect(self.link.epoch)
            self.later(RENEW_EVERY_NS, partial(self._renew, self.link.epoch))
            self.feed([])

        def on_error(_: SymphonyError | None) -> None:
            self.later(REOPEN_AFTER_NS, self._open)

        self.deployment.wires.request(
            self, KV_OPEN, self.link.open(incarnation), on_opened, on_error, ident=self.host_id
        )

    def _call(self, subject: Any, message: object, then: Any) -> None:
        """Ask the kvstore; `then` is given its answer, or None if there is none."""
        epoch = self.link.epoch

        def on_error(error: SymphonyError) -> None:
            if self.link.on_error(error, epoch):
                self.core.write_behind.disconnect()
                self.later(0, self._open)
            then(None)

        self.deployment.wires.request(self, subject, message, then, on_error, ident=self.host_id)

    def _renew(self, epoch: int) -> None:
        if self.link.is_open and epoch == self.link.epoch:
            self.later(RENEW_EVERY_NS, partial(self._renew, epoch))
            message = self.link.renew(self.core.history.take_used())
            self._call(KV_RENEW, message, self._on_renewed)

    def _on_renewed(self, reply: Any) -> None:
        if reply is not None:
            self.core.estimates.on_source(*self.link.on_renewed(reply))
            self.core.pool.on_copies_gone(gone_blocks(reply))
        self.feed([])

    def _stage_turn(self, effect: StageTurn) -> None:
        def then(staged: Staged | None) -> None:
            self.feed(self.core.on_staged(effect.turn_id, effect.attempt, staged, self.now_ns))

        self._stage(self.link.stage_turn(effect), effect.keys, then)

    def _stage_image(self, effect: StageImage) -> None:
        def then(staged: Staged | None) -> None:
            self.feed(self.core.on_image_staged(effect.number, staged, self.now_ns))

        self._stage(self.link.stage_image(effect, is_far=False), effect.keys, then)

    def _stage_session(self, effect: StageSession) -> None:
        ahead_ns = self._arrives_at_ns[(effect.tenant, effect.session_id)] - self.now_ns
        assert ahead_ns < FAR_NS, f"{effect.session_id} is not expected before tomorrow"

        def then(staged: Staged | None) -> None:
            self.feed(self.core.on_session_staged(effect.number, staged, self.now_ns))

        self._stage(self.link.stage_session(effect), list(effect.keys) or None, then)

    def _stage(self, message: KvStage, keys: list[BlockKey] | None, then: Any) -> None:
        epoch = self.link.epoch

        def on_reply(reply: Any) -> None:
            staged = None
            if reply is not None:
                try:
                    staged = self.link.on_staged(reply, keys, epoch)
                except MalformedMessage:
                    self._release(ticket=reply.ticket)
            then(staged)

        self._call(KV_STAGE, message, on_reply)

    def _commit(self, effect: CommitBlocks) -> None:
        keys = [write.key for write in effect.writes]
        self.device.check_stored(effect.writes)

        def then(reply: Any) -> None:
            if reply is not None:
                self.core.on_committed(keys)
            else:
                self.core.write_behind.on_refused(keys)
            self.feed([])

        self._call(KV_COMMIT, self.link.commit(effect.writes, effect.checksums), then)

    def _lease(self, num_pages: int) -> None:
        epoch = self.link.epoch

        def then(reply: Any) -> None:
            if epoch == self.link.epoch:
                pages = [] if reply is None else self.link.on_leased(reply, epoch)
                assert pages is not None
                self.core.on_leased(pages)
            self.feed([])

        self._call(KV_LEASE, self.link.lease(num_pages), then)

    def _release(self, ticket: int = 0, pages: list[int] | None = None, num_kept: int = 0) -> None:
        message = self.link.release(ticket, pages, num_kept)
        self.deployment.wires.send(self, KV_RELEASE, message, self.host_id)
