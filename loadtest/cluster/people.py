"""Everybody who asks something of a simulated cluster, by scripts.

A turn's prompt is all that its session has sent and received. Hints go the way of clients' hints:
through a frontend to the tracker.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from zlib import crc32

import numpy as np

from loadtest.cluster.door import Announce, Ask, Door
from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.stats import Stats, TurnRecord
from loadtest.sim.timeline import SECOND
from loadtest.workloads.script import Part, Script, ScriptedTurn
from shared.ids import SessionId, TenantId
from shared.wire.messages import ADVISORY_PRIORITY, AgentRef
from shared.wire.shards import expected_as, turn_id_in

URGENT = ADVISORY_PRIORITY + 1
TEXT = (32, 127)  # tokens that texts are of: letters, where tokens are bytes
TEXTS_KEPT = 4096
MEMORY = 0.8  # of what was known of how long an agent's turns take


@dataclass(slots=True)
class _Session:
    """Attributes:
    num_turns: that are over.
    num_known: tokens whose KV was computed by them.
    """

    name: str
    session_id: SessionId
    tenant: TenantId
    priority: int
    tokens: list[int] = field(default_factory=list)
    num_turns: int = 0
    num_known: int = 0


@dataclass(slots=True)
class _Play:
    """A script on its way.

    Attributes:
        num_left: of each turn, turns before it that have not ended.
        heard_by: of each turn, those that wait for its end; `hinted_by`: for its start.
        num_turns_of: of each session.
    """

    script: Script
    priority: int
    num_left: list[int]
    heard_by: list[list[int]]
    hinted_by: list[list[int]]
    num_turns_of: Counter[str]


class People:
    """Args:
    grain: tokens of scripts that are one here.
    tokens_max: of a session; a person whose next turn would have more leaves.

    Attributes:
        num_open: turns that have not ended; `num_left`: with those that have not begun.
    """

    def __init__(
        self,
        door: Door,
        scripts: Sequence[Script],
        options: ClusterOptions,
        stats: Stats,
        *,
        grain: int = 1,
        tokens_max: int,
    ) -> None:
        self._door = door
        self._options = options
        self._stats = stats
        self._grain = grain
        self._tokens_max = tokens_max
        self._random = Random(f"people {options.seed}")
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._over_for_good: list[_Session] = []  # sessions that had their last turn
        self._seconds: dict[str, float] = {}  # that an agent's turns take
        self._texts: dict[Part, list[int]] = {}
        self._begins_at_ns = door.now_ns
        self.num_open = 0
        self.num_left = sum(len(script.turns) for script in scripts)
        for script in scripts:
            self._begin(script)

    @property
    def now_ns(self) -> int:
        """From the beginning of the workload."""
        return self._door.now_ns - self._begins_at_ns

    def _begin(self, script: Script) -> None:
        turns = script.turns
        is_urgent = self._random.random() < self._options.priority_share
        play = _Play(
            script,
            URGENT if is_urgent else 0,
            [len(turn.after) for turn in turns],
            [[] for _ in turns],
            [[] for _ in turns],
            Counter(turn.session for turn in turns),
        )
        self._stats.num_turns_of[script.name] = len(turns)
        for number, turn in enumerate(turns):
            for before in turn.after:
                play.heard_by[before].append(number)
            if turn.hint is not None and turn.hint.at_start_of is not None:
                play.hinted_by[turn.hint.at_start_of].append(number)
        for number, turn in enumerate(turns):
            if not turn.after:
                self._door.after(script.begins_ns, partial(self._wait, play, number))

    def _wait(self, play: _Play, number: int) -> None:
        """Read, type, or run a tool; then ask."""
        turn = play.script.turns[number]
        if self.now_ns + turn.wait_ns >= self._options.lasts_ns:
            return
        hint = turn.hint
        if hint is not None and hint.at_start_of is None and not self._is_missed():
            delay_ns = turn.wait_ns - min(hint.lead_ns, turn.wait_ns)
            self._door.after(delay_ns, partial(self._hint, play, turn, hint.expected_in_ns))
        self._door.after(turn.wait_ns, partial(self._ask, play, number))

    def _is_missed(self) -> bool:
        return self._random.random() < self._options.missed

    def _ask(self, play: _Play, number: int) -> None:
        turn = play.script.turns[number]
        session = self._session(play, turn)
        for part in turn.parts:
            session.tokens += self._text(part)
        num_output = -(-turn.num_output // self._grain)
        if len(session.tokens) + num_output > self._tokens_max:
            return
        agent = _agent(play, turn)
        name = expected_as(session.session_id, agent, is_new=not session.num_known)
        ask = Ask(
            turn_id=turn_id_in(f"{play.script.name}.{number}", session.tenant, name),
            session_id=session.session_id,
            tenant=session.tenant,
            prompt=list(session.tokens),
            num_output=num_output,
            priority=max(turn.priority, play.priority),
            agent=agent,
        )
        record = TurnRecord(
            play.script.name,
            session.priority,
            self.now_ns,
            len(ask.prompt) * self._grain,
            session.num_known * self._grain,
            turn.num_output,
            num_output * self._grain,
            self._grain,
        )
        self._stats.turns[ask.turn_id] = record
        self.num_open += 1

        def on_tokens(tokens: list[int]) -> None:
            session.tokens += tokens
            record.first_at_ns = record.first_at_ns or self.now_ns

        def on_end(is_good: bool) -> None:
            record.is_failed = not is_good
            if is_good:
                session.num_known = len(session.tokens) - 1  # no pass ran on the last one
            self._over(play, number, session, record)

        self._door.ask(ask, on_tokens, on_end)
        for announced in play.hinted_by[number]:
            if not self._is_missed():
                self._hint_next(play, announced, number)
        num_spurious, rest = divmod(self._options.spurious, 1)
        for _ in range(int(num_spurious) + (self._random.random() < rest)):
            self._mislead()

    def _over(self, play: _Play, number: int, session: _Session, record: TurnRecord) -> None:
        record.ended_at_ns = self.now_ns
        self.num_open -= 1
        self.num_left -= 1
        session.num_turns += 1
        if session.num_turns == play.num_turns_of[session.name]:
            self._over_for_good.append(session)
        turn = play.script.turns[number]
        took_s = (record.ended_at_ns - record.arrived_at_ns) / SECOND
        known_s = self._seconds.get(turn.agent, took_s)
        self._seconds[turn.agent] = MEMORY * known_s + (1 - MEMORY) * took_s
        for later in play.heard_by[number]:
            play.num_left[later] -= 1
            if not play.num_left[later]:
                self._wait(play, later)

    # Hints.

    def _hint(self, play: _Play, turn: ScriptedTurn, expected_ns: int | None) -> None:
        session = self._session(play, turn)
        self._door.announce(
            Announce(
                session_id=session.session_id,
                tenant=session.tenant,
                expected_in_ns=expected_ns,
                priority=session.priority or ADVISORY_PRIORITY,
                agent=_agent(play, turn),
                place=play.script.name,
            )
        )

    def _hint_next(self, play: _Play, announced: int, number: int) -> None:
        """What follows the turn that starts now, as far as is known of how long such turns take."""
        turns = play.script.turns
        seconds = self._seconds.get(turns[number].agent)
        hint = turns[announced].hint
        expected_ns = None if hint is None else hint.expected_in_ns  # as it was learned before
        if seconds is not None:
            expected_ns = int(seconds * SECOND) + turns[announced].wait_ns
        self._hint(play, turns[announced], expected_ns)

    def _mislead(self) -> None:
        """A person types in a session that has no turn any more, and does not send it."""
        if not self._over_for_good:
            return
        session = self._random.choice(self._over_for_good)
        self._stats.num_spurious += 1
        self._door.announce(
            Announce(
                session_id=session.session_id,
                tenant=session.tenant,
                expected_in_ns=None,
                priority=ADVISORY_PRIORITY,
                agent=None,
                place=session.session_id,
            )
        )

    # Texts.

    def _session(self, play: _Play, turn: ScriptedTurn) -> _Session:
        name = play.script.name, turn.session
        if (session := self._sessions.get(name)) is None:
            session = _Session(
                turn.session, SessionId("/".join(name)), TenantId(play.script.tenant), play.priority
            )
            self._sessions[name] = session
        return session

    def _text(self, part: Part) -> list[int]:
        """Its tokens, which differ from those of other names."""
        if (tokens := self._texts.get(part)) is None:
            drawn = np.random.default_rng(crc32(part.name.encode()))
            num_tokens = -(-part.num_tokens // self._grain)
            tokens = drawn.integers(*TEXT, size=num_tokens).tolist()
            if len(self._texts) < TEXTS_KEPT:
                self._texts[part] = tokens
        return tokens


def _agent(play: _Play, turn: ScriptedTurn) -> AgentRef | None:
    return AgentRef(agent=turn.agent, workflow_id=play.script.name) if turn.agent else None
