"""Everybody who asks something of a simulated cluster, by scripts.

A turn's prompt is all that its session has said and heard. Hints go the way that clients' hints go:
through a frontend to the tracker.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from zlib import crc32

from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.stats import Stats, TurnRecord
from loadtest.workloads.script import Part, Script, ScriptedTurn
from loadtest.world.frontend import Frontend
from loadtest.world.house import House
from services.frontend.core.turns import Deliver, Fail, NewTurn
from shared.ids import SessionId, TenantId, TurnId
from shared.messages import ADVISORY_PRIORITY, Advisory, AgentRef, SamplingParams

SECOND = 1_000_000_000
URGENT = ADVISORY_PRIORITY + 1
MEMORY = 0.8  # of what was known of how long an agent's turns take


@dataclass(slots=True)
class _Session:
    """Attributes:
    num_turns: that are over.
    num_known: tokens whose KV was computed by them.
    """

    session_id: SessionId
    tenant: TenantId
    priority: int
    tokens: list[int] = field(default_factory=list)
    num_turns: int = 0
    num_known: int = 0
    is_open: bool = False


@dataclass(slots=True)
class _Play:
    """A script on its way.

    Attributes:
        num_left: of each turn, turns before it that have not ended.
        heard_by: of each turn, those that wait for its end; `hinted_by`: for its start.
    """

    script: Script
    priority: int
    num_left: list[int]
    heard_by: list[list[int]]
    hinted_by: list[list[int]]
    started_at_ns: dict[int, int] = field(default_factory=dict)


class People:
    """Args:
    frontends: a script stays with one.

    Attributes:
        num_open: turns that have not ended.
    """

    def __init__(
        self,
        house: House,
        frontends: Sequence[Frontend],
        scripts: Sequence[Script],
        options: ClusterOptions,
        stats: Stats,
    ) -> None:
        self._house = house
        self._timeline = house.timeline
        self._frontends = frontends
        self._options = options
        self._stats = stats
        self._random = Random(f"people {options.seed}")
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._idle: list[_Session] = []  # that have had turns
        self._seconds: dict[str, float] = {}  # that an agent's turns take
        self._texts: dict[Part, list[int]] = {}
        self._begins_at_ns = self._timeline.now_ns
        self._ends_at_ns = self._begins_at_ns + options.duration_ns
        self.num_open = 0
        for number, script in enumerate(scripts):
            self._begin(script, frontends[number % len(frontends)])

    @property
    def now_ns(self) -> int:
        """From the beginning of the workload."""
        return self._timeline.now_ns - self._begins_at_ns

    def _begin(self, script: Script, frontend: Frontend) -> None:
        turns = script.turns
        is_urgent = self._random.random() < self._options.priority_share
        play = _Play(
            script,
            URGENT if is_urgent else 0,
            [len(turn.after) for turn in turns],
            [[] for _ in turns],
            [[] for _ in turns],
        )
        for number, turn in enumerate(turns):
            for before in turn.after:
                play.heard_by[before].append(number)
            if turn.hint is not None and turn.hint.at_start_of is not None:
                play.hinted_by[turn.hint.at_start_of].append(number)
        for number, turn in enumerate(turns):
            if not turn.after:
                self._timeline.after(script.begins_ns, partial(self._wait, play, number, frontend))

    def _wait(self, play: _Play, number: int, frontend: Frontend) -> None:
        """Read, type, or run a tool; then ask."""
        turn = play.script.turns[number]
        if self._timeline.now_ns + turn.wait_ns >= self._ends_at_ns:
            return
        hint = turn.hint
        if hint is not None and hint.at_start_of is None and not self._is_missed():
            lead_ns = min(hint.lead_ns, turn.wait_ns)
            expected_ns = hint.expected_in_ns
            self._timeline.after(
                turn.wait_ns - lead_ns, lambda: self._hint(play, turn, frontend, expected_ns)
            )
        self._timeline.after(turn.wait_ns, lambda: self._ask(play, number, frontend))

    def _is_missed(self) -> bool:
        return self._random.random() < self._options.missed

    def _ask(self, play: _Play, number: int, frontend: Frontend) -> None:
        turn = play.script.turns[number]
        session = self._session(play, turn)
        for part in turn.parts:
            session.tokens += self._text(part)
        model = self._house.model
        if len(session.tokens) + turn.num_output > model.max_model_len:
            return  # the conversation is as long as the model takes: its person leaves
        turn_id = TurnId(f"{play.script.name}.{number}")
        session.is_open = True
        prompt = list(session.tokens)
        self._stats.turns[turn_id] = record = TurnRecord(
            play.script.name, session.priority, self.now_ns, len(prompt), session.num_known,
            turn.num_output,
        )  # fmt: skip
        self.num_open += 1
        play.started_at_ns[number] = self.now_ns
        agent = AgentRef(agent=turn.agent, workflow_id=play.script.name) if turn.agent else None
        new = NewTurn(
            turn_id=turn_id,
            model_id=model.model_id,
            prompt=prompt,
            sampling=SamplingParams(max_tokens=turn.num_output, ignore_eos=True),
            tenant=session.tenant,
            session_id=session.session_id,
            priority=max(turn.priority, play.priority),
            agent=agent,
        )

        def on_news(news: Deliver | Fail) -> None:
            if isinstance(news, Fail):
                record.is_failed = True
                self._over(play, number, session, record, frontend)
                return
            if news.tokens:
                session.tokens += news.tokens
                record.first_at_ns = record.first_at_ns or self.now_ns
            if news.finish is not None:
                session.num_known = len(session.tokens) - 1  # nobody ran on the last one
                self._over(play, number, session, record, frontend)

        frontend.open(new, on_news)
        for announced in play.hinted_by[number]:
            if not self._is_missed():
                self._hint_next(play, announced, number, frontend)
        if self._idle and self._random.random() < self._options.spurious:
            self._mislead(frontend)

    def _over(
        self,
        play: _Play,
        number: int,
        session: _Session,
        record: TurnRecord,
        frontend: Frontend,
    ) -> None:
        record.ended_at_ns = self.now_ns
        self.num_open -= 1
        session.is_open = False
        session.num_turns += 1
        if session.num_turns == 1:
            self._idle.append(session)
        turn = play.script.turns[number]
        took_s = (self.now_ns - play.started_at_ns[number]) / SECOND
        known_s = self._seconds.get(turn.agent, took_s)
        self._seconds[turn.agent] = MEMORY * known_s + (1 - MEMORY) * took_s
        for later in play.heard_by[number]:
            play.num_left[later] -= 1
            if not play.num_left[later]:
                self._wait(play, later, frontend)

    # Hints.

    def _hint(
        self, play: _Play, turn: ScriptedTurn, frontend: Frontend, expected_ns: int | None
    ) -> None:
        session = self._session(play, turn)
        frontend.advise(
            Advisory(
                session_id=session.session_id,
                tenant=session.tenant,
                model_id=self._house.model.model_id,
                expected_arrival=None if expected_ns is None else expected_ns / SECOND,
                priority=session.priority or ADVISORY_PRIORITY,
                agent=turn.agent,
                workflow_id=play.script.name if turn.agent else "",
                place=play.script.name,
            )
        )

    def _hint_next(self, play: _Play, announced: int, number: int, frontend: Frontend) -> None:
        """What follows the turn that starts now, as far as is known of how long such turns take."""
        turns = play.script.turns
        seconds = self._seconds.get(turns[number].agent)
        expected_ns = None
        if seconds is not None:
            expected_ns = int(seconds * SECOND) + turns[announced].wait_ns
        self._hint(play, turns[announced], frontend, expected_ns)

    def _mislead(self, frontend: Frontend) -> None:
        """Somebody types, and does not send it."""
        session = self._random.choice(self._idle)
        if session.is_open:
            return
        frontend.advise(
            Advisory(
                session_id=session.session_id,
                tenant=session.tenant,
                model_id=self._house.model.model_id,
                place=str(session.session_id),
            )
        )

    # Texts.

    def _session(self, play: _Play, turn: ScriptedTurn) -> _Session:
        name = play.script.name, turn.session
        if (session := self._sessions.get(name)) is None:
            session = _Session(
                SessionId("/".join(name)), TenantId(play.script.tenant), play.priority
            )
            self._sessions[name] = session
        return session

    def _text(self, part: Part) -> list[int]:
        """Its tokens, which differ from those of other names."""
        if (tokens := self._texts.get(part)) is None:
            first, size = crc32(part.name.encode()), self._house.model.vocab_size - 2
            tokens = [2 + (first + 7919 * at) % size for at in range(part.num_tokens)]
            if len(self._texts) < 4096:
                self._texts[part] = tokens
        return tokens
