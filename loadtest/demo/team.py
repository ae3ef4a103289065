"""The teams: agents as MetaGPT has them, who hand their work to each other, on both sides.

Their calls are those of the client's own example (`clients/python/examples/software_team.py`).
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import software_team
from openai import AsyncOpenAI, OpenAIError
from software_team import Desk

from loadtest.demo.script import ROLES, Side, Sizes, sides_in_turns, steps
from loadtest.demo.seen import Seen, Which, seen_of
from shared.errors import PeerUnavailable
from symphony_client import (
    Announcer,
    AsyncHttpTransport,
    Settings,
    SymphonyClient,
    SymphonyError,
)

MODES: dict[Side, str] = {"without": "unnamed", "with": "announced"}
APART_S = 1.0  # from one team's beginning to the next one's


class Team(software_team.Team):
    """One team in one run of one side.

    Args:
        run: which, from 0 on; number: of the team in it.
        on_seen: called with each turn.
        more: as the example's team takes it.
    """

    def __init__(
        self, run: int, side: Side, number: int, on_seen: Callable[[Seen], None], **more: Any
    ) -> None:
        super().__init__(mode=MODES[side], seen=software_team.Seen(), **more)
        self._run = run
        self._side: Side = side
        self._number = number
        self._on_seen = on_seen
        self._num_turns: dict[str, int] = {}
        self._num_context: dict[str, int] = {}

    def note(self, name: str, is_first: bool, first_ms: float, usage: Any) -> None:
        counted = usage.model_dump() if usage is not None else {}
        number = self._num_turns.get(name, 0)
        self._num_turns[name] = number + 1
        which = Which("team", self._run, f"{name} {self._number + 1}", number)
        seen = seen_of(which, self._side, first_ms, counted, self._num_context.get(name, 0))
        self._num_context[name] = seen.num_prompt + int(counted.get("completion_tokens") or 0)
        self._on_seen(seen)

    @property
    def sessions(self) -> list[str]:
        """Of its agents."""
        return [self.workflow.session_of(role) for role in ROLES]

    async def work(self, num_rounds: int) -> float:
        """All of it; how long it took, s."""
        await asyncio.sleep(self._number * APART_S)
        began_at = time.monotonic()
        desks: dict[str, Desk] = {}
        said = "Write down what is wanted."
        with self.workflow:
            for step in steps(num_rounds):
                with self.workflow.agent(step.role, next=step.following) as agent:
                    desk = desks.setdefault(step.role, Desk(self, agent))
                    desk.agent = agent
                    brief = software_team.filler(said, self.sizes.document_chars)
                    said = await desk.ask(brief if step.is_first else f"Go over it again: {said}")
                    if step.tool:
                        said = await desk.use(step.tool, "This is what it found. Mend it.")
        return time.monotonic() - began_at


async def play_team(
    url: str, model: str, sizes: Sizes, rng: Random, on_seen: Callable[[Seen], None]
) -> dict[Side, list[float]]:
    """Play all of it; how long each team took, by side.

    Raises:
        PeerUnavailable: the deployment did not answer as it should.
    """
    teams_s: dict[Side, list[float]] = {"without": [], "with": []}
    settings = Settings.read(url)
    silent = Announcer(AsyncHttpTransport(settings))
    silent.close()  # it announces nothing
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as openai:
        for run, side in sides_in_turns(sizes.num_pairs, rng):
            with SymphonyClient(url, announcer=None if side == "with" else silent) as client:
                teams = []
                for number in range(sizes.num_teams):
                    name = f"team/{side}/{run}/{number}"
                    team = Team(
                        run, side, number, on_seen,
                        openai=openai, workflow=client.workflow(name, "demo", model=model),
                        model=model, sizes=_sizes(sizes),
                        fields={"cache_salt": name, "return_cached_tokens_details": True},
                    )  # fmt: skip
                    teams.append(team)
                try:
                    teams_s[side] += await asyncio.gather(
                        *(team.work(sizes.num_rounds) for team in teams)
                    )
                except OpenAIError as error:
                    raise PeerUnavailable(f"{side} hints: {error}") from None
                # Those of the next run find the deployment as these did.
                await asyncio.gather(
                    *(asyncio.to_thread(_forget, client, team.sessions) for team in teams)
                )
    return teams_s


def _forget(client: SymphonyClient, sessions: Iterable[str]) -> None:
    try:
        for session in sessions:
            client.forget(session)
    except SymphonyError as error:
        raise PeerUnavailable(f"to forget a session: {error}") from None


def _sizes(sizes: Sizes) -> software_team.Sizes:
    return software_team.Sizes(
        system_chars=sizes.system_tokens,
        document_chars=sizes.brief_tokens,
        reply_tokens=sizes.team_reply_tokens,
        tool_s=sizes.tool_s,
    )
