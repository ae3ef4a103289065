"""Lets one person live, and one script happen, against a deployment: the shell around `life` and
`follow`. Blocks; where gevent has patched the standard library, threads and sleep are its own.
"""

import heapq
import queue
import threading
import time
from collections.abc import Iterable
from typing import Any

from loadtest.users.follow import Due, Following
from loadtest.users.life import Answer, Hint, Send, TakeBack, Wait, live
from loadtest.users.stage import Stage
from loadtest.workloads.script import Part, Script, ScriptedTurn

SYSTEM = "system/"  # parts that are so called are what a conversation's system message says
LOOK_S = 1.0  # how often a script looks whether the run is over


def lead_a_life(stage: Stage, name: str) -> None:
    """One person, from the first message until they leave."""
    rng = stage.rng(name)
    hints = stage.hints(name)
    speaker = stage.speaker(hints=hints)
    models: dict[str, str] = {}  # of conversations
    acts = live(
        f"{stage.options.run_id}/{name}", stage.habits, stage.dialogues(rng), rng, hints=hints
    )
    answer: Answer | None = None
    while not stage.is_over:
        try:
            act = acts.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(act, Wait):
            time.sleep(act.seconds / stage.options.faster)
            continue
        if act.session not in models:
            models[act.session] = stage.model_of(rng)
        model = models[act.session]
        if isinstance(act, Hint):
            expected_in_s = act.expected_in_s
            if expected_in_s is not None:
                expected_in_s /= stage.options.faster
            speaker.hint(act.session, model, expected_in_s)
        elif isinstance(act, TakeBack):
            speaker.take_back(act.session)
        elif isinstance(act, Send):
            text = act.said.text
            if not speaker.num_context(act.session):
                text = f"({act.session}) {text}"  # no other session's text begins so
            answer = speaker.say(act.session, model, text, act.said.num_answer)


class Happening:
    """One script from its first turn to its last. Turns that do not wait for each other run at
    once.
    """

    def __init__(self, stage: Stage, script: Script) -> None:
        self._stage = stage
        self._script = script
        self._name = f"{stage.options.run_id}/{script.name}"
        self._hints = stage.hints(script.name)
        has_agents = any(turn.agent for turn in script.turns)
        self._is_announced = self._hints and has_agents
        self._speaker = stage.speaker(hints=self._hints, is_announced=self._is_announced)
        self._model = stage.model_for(script.tenant)
        self._ended: queue.Queue[int] = queue.Queue()
        self._volume: dict[str, int] = {}  # how often a session had to start again

    def run(self) -> None:
        """Until it is over, or the run is."""
        following = Following(self._script, self._stage.options.faster)
        began_at = time.monotonic()
        due = following.begin()
        heapq.heapify(due)
        while following.num_left and not self._stage.is_over:
            now_s = time.monotonic() - began_at
            while due and due[0].at_s <= now_s:
                self._begin(heapq.heappop(due), following, due, now_s)
            left_s = due[0].at_s - now_s if due else LOOK_S
            try:
                ended = self._ended.get(timeout=min(max(left_s, 0.0), LOOK_S))
            except queue.Empty:
                continue
            _push(due, following.on_end(ended, time.monotonic() - began_at))

    def _begin(self, each: Due, following: Following, due: list[Due], now_s: float) -> None:
        turn = self._script.turns[each.turn]
        if not each.is_sent:
            if self._hints:
                arguments = (self._session(turn), self._model, each.expected_in_s)
                threading.Thread(target=self._speaker.hint, args=arguments, daemon=True).start()
            return
        threading.Thread(target=self._send, args=(each.turn, turn), daemon=True).start()
        _push(due, following.on_start(each.turn, now_s))

    def _send(self, number: int, turn: ScriptedTurn) -> None:
        try:
            self._say(turn)
        finally:
            self._ended.put(number)

    def _say(self, turn: ScriptedTurn) -> None:
        num_new = sum(part.num_tokens for part in turn.parts)
        num_answer = self._stage.answer_max(turn.num_output)
        session = self._session(turn)
        if not self._stage.fits(self._speaker.num_context(session), num_new, num_answer):
            self._volume[turn.session] = self._volume.get(turn.session, 0) + 1
            self._speaker.forget(session)
            session = self._session(turn)
        more: dict[str, Any] = {}
        if turn.priority:
            more["priority"] = turn.priority
        if turn.agent and self._is_announced:
            more |= {"agent": turn.agent, "workflow_id": self._name}
        system = [part for part in turn.parts if part.name.startswith(SYSTEM)]
        said = [part for part in turn.parts if not part.name.startswith(SYSTEM)]
        self._speaker.say(
            session,
            self._model,
            self._text(said) or ".",
            num_answer,
            system=self._text(system),
            **more,
        )

    def _text(self, parts: Iterable[Part]) -> str:
        """Cut where it would not fit the model at all."""
        texts, run = self._stage.texts, self._stage.options.run_id
        text = "".join(texts.fill(f"{run}/{part.name}", part.num_tokens) for part in parts)
        return text[: round(self._stage.context_max * 0.7 * texts.chars_per_token)]

    def _session(self, turn: ScriptedTurn) -> str:
        volume = self._volume.get(turn.session, 0)
        return f"{self._name}/{turn.session}" + (f"+{volume}" if volume else "")


def _push(due: list[Due], more: Iterable[Due]) -> None:
    for each in more:
        heapq.heappush(due, each)
