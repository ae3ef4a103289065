"""A frontend: the production core of turns, and what it owes to clients, Redis and the bus."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from loadtest.sim.process import Process
from loadtest.sim.redis import RedisServer
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.ledger import Ledger
from loadtest.sim.timeline import MS, SECOND
from loadtest.sim.wires import Reply
from services.frontend.core.turns.turns import (
    AnswerPull,
    AskScheduler,
    Cancel,
    Deliver,
    Effect,
    Fail,
    NewTurn,
    Start,
    Submit,
    TurnLimits,
    Turns,
)
from shared.blocks import BlockKey, chain_keys, child_key, pack_keys, root_key
from shared.errors import HintsThrottled
from shared.ids import FrontendId, HostId, SessionId, TenantId, TurnId, WorkerId
from shared.locations import (
    KV_HOSTS_KEY,
    decode_lives,
    decode_locations,
    known_places,
    location_redis_key,
)
from shared.owners import owner_key
from shared.wire.hint_accounts import HintAccounts, HintLimits, HintSender, session_name
from shared.wire.messages import (
    Advisory,
    AgentTurnLeft,
    Empty,
    PromptPull,
    SessionPlaced,
    StepOutput,
    TurnFailed,
    TurnsStart,
    TurnsSubmit,
    TurnStart,
    TurnSubmit,
)
from shared.wire.sessions import SessionRecord, TextMark, encode_record, session_redis_key
from shared.wire.shards import by_shard, turn_shard
from shared.wire.subjects import (
    ADVISORY_SUBMIT,
    HINTS_ENDED,
    PROMPT_PULL,
    SCHEDULER_PING,
    SESSION_PLACED,
    STEP_OUTPUT,
    TURN_CANCEL,
    TURN_FAILED,
    TURN_SUBMIT,
    WORKER_START,
)
from shared.wire.tracker_shards import at_shard, left_wire, shard_of

TICK_NS = 250 * MS
TOOL_SHARE = 0.3  # of agents' turns: they end with the call of a tool
# Of advisories in no order, where the tracker is divided: any shard is asked, as on NATS.
PUBLIC_SHARE = 0.3
ANSWER_NS = MS  # of Redis
PROMPT_BYTES_MAX = (0, 600, 8192)  # none, some, and all prompts go along with their first submits

News = Callable[["Deliver | Fail"], None]


@dataclass(frozen=True, slots=True)
class Record:
    """What others need of a session's record, as `shared.wire.sessions` has it."""

    num_computed: int
    num_turns: int


class Frontend(Process):
    """Attributes:
    hint_limits: small, so that they are reached.
    turns, hints: the cores, of this life.
    """

    deployment: SimDeployment

    hint_limits: ClassVar = HintLimits(per_place=160, per_tenant=320)

    def __init__(
        self, deployment: SimDeployment, redis: RedisServer, ledger: Ledger, number: int
    ) -> None:
        super().__init__(deployment, f"frontend-{number}")
        self._redis = redis
        self._records: dict[tuple[TenantId, SessionId | None], Record] = {}
        self._ledger = ledger

    def on_start(self) -> None:
        self._frontend_id = FrontendId(f"{self.name}-{self.life}")
        limits = TurnLimits(prompt_bytes_max=self.deployment.random.choice(PROMPT_BYTES_MAX))
        self.turns = Turns(self._frontend_id, limits)
        self.hints = HintAccounts(self.hint_limits)
        self._readers: dict[TurnId, News] = {}
        self._new: dict[TurnId, NewTurn] = {}
        self._said: dict[TurnId, list[int]] = {}
        self._numbers: dict[TurnId, int] = {}  # of turns in their sessions
        self._pulled: dict[TurnId, int] = {}
        wires, me = self.deployment.wires, self._frontend_id
        wires.listen(self, PROMPT_PULL, self._on_pull, me)
        wires.listen(self, STEP_OUTPUT, lambda message, _: self._on_step(message), me)
        wires.listen(self, SESSION_PLACED, lambda message, _: self._on_placed(message))
        wires.listen(self, TURN_FAILED, lambda message, _: self._on_failed(message), me)
        wires.listen(self, HINTS_ENDED, lambda message, _: self.hints.on_ended(message), me)
        self.later(TICK_NS, self._tick)

    def open(self, new: NewTurn, reader: News) -> None:
        """A client asks for a turn."""
        record = self._records.get((new.tenant, new.session_id))
        new = replace(
            new,
            kv_at=self.located(new.tenant, new.session_id),
            num_history=record.num_computed if record is not None else 0,
        )
        if new.session_id is not None:
            name = session_name(new.tenant, new.session_id)
            self.hints.on_turn(new.tenant, name, self.now_ns)
        self._readers[new.turn_id] = reader
        self._new[new.turn_id] = new
        self._numbers[new.turn_id] = 1 + (record.num_turns if record is not None else 0)
        self._said[new.turn_id] = []
        self._perform(self.turns.on_new(new, self.now_ns))

    def advise(self, advisory: Advisory) -> None:
        """A client announces a turn."""
        tenant, session_id = advisory.tenant, advisory.session_id
        num_shards = self.deployment.num_tracker_shards
        shard = shard_of(tenant, session_id, num_shards)
        kv_at = known_places(self.located(tenant, session_id))
        sender = HintSender(tenant, advisory.place, session_name(tenant, session_id))
        try:
            payer = self.hints.take(sender, self.now_ns, has_kv=bool(kv_at))
        except HintsThrottled:
            return
        self.hints.on_sent(sender, payer, shard)

        def on_reply(state: Any) -> None:
            if state.num_merged:
                self.hints.on_refund(sender, payer, shard)

        sent = replace(advisory, kv_at=kv_at, frontend_id=self._frontend_id, payer=payer)
        wire, ids = at_shard(ADVISORY_SUBMIT, tenant, session_id, num_shards)
        if (
            num_shards > 1
            and self.deployment.random.random() < PUBLIC_SHARE
            and not advisory.ordered
        ):
            wire, ids = ADVISORY_SUBMIT, ()
        self.deployment.wires.request(
            self, wire, sent, on_reply, lambda _: None, ident="".join(ids), timeout_ns=500 * MS
        )

    def located(self, tenant: TenantId, session_id: SessionId | None) -> dict[HostId, int]:
        """What it learns of where a session's KV is."""
        if session_id is None:
            return {}
        fields = self._redis.hash_of(location_redis_key(owner_key(tenant, session_id)))
        claims = self._redis.hash_of(KV_HOSTS_KEY)  # those of other hosts do not matter
        known = {name: claims[name] for name in fields if name in claims}
        return decode_locations(fields, decode_lives(known))

    def _on_pull(self, pull: PromptPull, reply: Reply) -> None:
        effect = self.turns.on_pull(pull, self.now_ns)[0]
        assert isinstance(effect, AnswerPull)
        for prompt in effect.message.prompts:
            if not prompt.gone:
                latest = self._pulled.get(prompt.turn_id, 0)
                assert prompt.attempt >= latest, f"{prompt.turn_id}: {latest} was pulled before"
                self._pulled[prompt.turn_id] = prompt.attempt
        reply(effect.message)

    def _on_step(self, step: StepOutput) -> None:
        for delta in step.deltas:
            self._perform(self.turns.on_delta(delta, self.now_ns))
        for token in step.tokens:
            self._perform(self.turns.on_token(token, self.now_ns))

    def _on_placed(self, placed: SessionPlaced) -> None:
        self.turns.on_placed(placed, self.now_ns)

    def _on_failed(self, failure: TurnFailed) -> None:
        self._perform(self.turns.on_failed(failure))

    def _tick(self) -> None:
        self.later(TICK_NS, self._tick)
        self._perform(self.turns.on_tick(self.now_ns))

    def _perform(self, effects: list[Effect]) -> None:
        submits: list[TurnSubmit] = []
        starts: list[tuple[WorkerId, TurnStart]] = []
        for effect in effects:
            match effect:
                case Deliver():
                    self._deliver(effect)
                case Fail(failure):
                    self._readers[failure.turn_id](effect)
                    self._forget(failure.turn_id)
                case Submit(message):
                    submits.append(message)
                case Start(worker_id, start):
                    starts.append((worker_id, start))
                case Cancel(message):
                    shard = str(turn_shard(message.turn_id, self.deployment.num_shards))
                    self.deployment.wires.send(self, TURN_CANCEL, message, shard)
                case AskScheduler():
                    self._ask_scheduler()
        for number, its in by_shard(submits, self.deployment.num_shards).items():
            self.deployment.wires.send(self, TURN_SUBMIT, TurnsSubmit(turns=its), str(number))
        for worker_id, start in starts:
            self._ledger.on_start_turn(start, worker_id)
            self.deployment.wires.send(self, WORKER_START, TurnsStart(turns=[start]), worker_id)

    def _ask_scheduler(self) -> None:
        missing = set(range(self.deployment.num_shards))

        def on_reply(shard: int, _: Any) -> None:
            missing.discard(shard)
            if not missing:
                self.turns.on_scheduler_seen(self.now_ns)

        for shard in range(self.deployment.num_shards):
            self.deployment.wires.request(
                self, SCHEDULER_PING, Empty(), partial(on_reply, shard), lambda _: None,
                ident=str(shard), timeout_ns=SECOND,
            )  # fmt: skip

    def _deliver(self, news: Deliver) -> None:
        """The session's record is stored before the last piece is handed out."""
        turn_id = news.turn_id
        reader, new = self._readers[turn_id], self._new[turn_id]
        self._said[turn_id] += news.tokens
        if news.finish is None:
            reader(news)
            return
        tokens = [*new.prompt, *self._said[turn_id]]
        number = self._numbers[turn_id]
        self._forget(turn_id)
        if new.agent is not None and new.session_id is not None:
            tools = ["ls"] if self.deployment.agent_random.random() < TOOL_SHARE else []
            keys = chain_keys(self._root(new), new.prompt, self.deployment.model.block_tokens)
            left = AgentTurnLeft(
                agent=new.agent, session_id=new.session_id, tenant=new.tenant, tools=tools,
                model_id=new.model_id, adapter=new.adapter, keys=pack_keys(keys),
            )  # fmt: skip
            wire, ids = left_wire(left, self.deployment.num_tracker_shards)
            self.deployment.wires.send(self, wire, left, *ids)
        if new.session_id is None:
            reader(news)
            return
        model = self.deployment.model
        root = self._root(new)
        tokens = tokens[:-1]  # no step ran on the last one
        keys = chain_keys(root, tokens, model.block_tokens)
        if rest := tokens[len(keys) * model.block_tokens :]:
            keys.append(child_key(keys[-1] if keys else root, rest))
        self._store(new, number, keys, len(tokens))
        self.later(ANSWER_NS, lambda: reader(news))

    def _store(self, new: NewTurn, number: int, keys: list[BlockKey], num_computed: int) -> None:
        """Keep what the session's next turn is to know."""
        assert new.session_id is not None
        self._records[new.tenant, new.session_id] = Record(num_computed, number)
        nothing = TextMark.of("")
        record = SessionRecord(
            session_id=new.session_id, tenant=new.tenant, model_id=new.model_id,
            fingerprint=self.deployment.model.fingerprint, tokens="", block_keys=pack_keys(keys),
            prompt=nothing, reply=nothing, stripped_reply=nothing, num_tokens=num_computed,
            num_turns=number, last_used=0.0, expires=0.0, num_computed=num_computed,
        )  # fmt: skip
        key = session_redis_key(new.tenant, new.session_id)
        self._redis.execute("SET", key, encode_record(record))

    def _root(self, new: NewTurn) -> BlockKey:
        adapter_hash = new.adapter.adapter_hash if new.adapter is not None else ""
        return root_key(self.deployment.model.fingerprint, new.tenant, adapter_hash, new.cache_salt)

    def _forget(self, turn_id: TurnId) -> None:
        self._readers.pop(turn_id, None)
        self._new.pop(turn_id, None)
        self._said.pop(turn_id, None)
        self._numbers.pop(turn_id, None)
