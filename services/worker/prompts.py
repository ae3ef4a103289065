"""Pulling prompts from the frontends, many in one request when many turns come at once."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from shared.bus import Bus
from shared.errors import SymphonyError
from shared.ids import FrontendId, TurnId, WorkerId
from shared.messages import Prompt, PromptPull, TurnRef, TurnStart
from shared.subjects import PROMPT_PULL
from shared.tasks import Tasks

log = logging.getLogger(__name__)

TOKENS_MAX = 65_536  # of prompts in one reply, so that it stays well below the server's limit
TURNS_MAX = 64
PULL_TIMEOUT_S = 5.0


class PromptPuller:
    """Collects the turns that start within one pass of the event loop and pulls them together.

    Args:
        on_prompt: called with each start and its prompt; the prompt is None, or `gone`, when the
            frontend does not answer or no longer wants the turn.
    """

    def __init__(
        self, bus: Bus, worker_id: WorkerId, on_prompt: Callable[[TurnStart, Prompt | None], None]
    ) -> None:
        self._bus = bus
        self._worker_id = worker_id
        self._on_prompt = on_prompt
        self._starts: dict[FrontendId, list[TurnStart]] = defaultdict(list)
        self._pulling: dict[TurnId, TurnStart] = {}
        self._tasks = Tasks("pulling prompts failed")

    def refs(self) -> list[TurnRef]:
        """Attempts whose prompt is on its way."""
        return [TurnRef(turn_id=s.turn_id, attempt=s.attempt) for s in self._pulling.values()]

    def start(self, start: TurnStart) -> None:
        """Pull this turn's prompt soon."""
        self._pulling[start.turn_id] = start
        if not self._starts:
            asyncio.get_running_loop().call_soon(self._flush)
        self._starts[start.frontend_id].append(start)

    def cancel(self, turn_id: TurnId, attempt: int) -> None:
        """Forget a turn whose prompt has not come, unless it is of a later attempt (0: any)."""
        start = self._pulling.get(turn_id)
        if start is not None and not (attempt and start.attempt > attempt):
            del self._pulling[turn_id]

    def _flush(self) -> None:
        starts, self._starts = self._starts, defaultdict(list)
        for frontend_id, turns in starts.items():
            for group in _groups(turns):
                self._tasks.spawn(self._pull(frontend_id, group))

    async def _pull(self, frontend_id: FrontendId, starts: list[TurnStart]) -> None:
        refs = [TurnRef(turn_id=s.turn_id, attempt=s.attempt) for s in starts]
        request = PromptPull(worker_id=self._worker_id, turns=refs)
        prompts: list[Prompt | None]
        try:
            reply = await self._bus.request(
                PROMPT_PULL, request, frontend_id, timeout_s=PULL_TIMEOUT_S
            )
            prompts = _in_order(reply.prompts, starts)
        except SymphonyError as error:
            log.warning("no prompt", extra={"frontend": frontend_id, "error": error.message})
            prompts = [None] * len(starts)
        for start, prompt in zip(starts, prompts, strict=True):
            if self._pulling.get(start.turn_id) is start:  # not cancelled, not replaced meanwhile
                del self._pulling[start.turn_id]
                self._on_prompt(start, prompt)


def _in_order(prompts: list[Prompt], starts: list[TurnStart]) -> list[Prompt | None]:
    """The prompt of each start; None for one that the answer does not hold."""
    given = {(prompt.turn_id, prompt.attempt): prompt for prompt in prompts}
    return [given.get((start.turn_id, start.attempt)) for start in starts]


def _groups(starts: list[TurnStart]) -> list[list[TurnStart]]:
    groups: list[list[TurnStart]] = [[]]
    num_tokens = 0
    for start in starts:
        num_tokens += start.num_prompt_tokens
        if groups[-1] and (num_tokens > TOKENS_MAX or len(groups[-1]) >= TURNS_MAX):
            groups.append([])
            num_tokens = start.num_prompt_tokens
        groups[-1].append(start)
    return groups
