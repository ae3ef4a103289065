"""Prompts: along with their starts, or pulled from the frontends, many in one request when many
turns come at once.
"""

import asyncio
import logging
from collections.abc import Callable

from services.worker.core.pulling import Pull, Pulling
from shared.bus import Bus
from shared.errors import SymphonyError
from shared.ids import FrontendId, SessionId, TenantId, TurnId
from shared.runtime.clock import Clock
from shared.runtime.tasks import Tasks
from shared.wire.messages import (
    Prompt,
    PromptPull,
    PromptReply,
    RunningTurn,
    TurnRef,
    TurnStart,
)
from shared.wire.subjects import PROMPT_PULL

log = logging.getLogger(__name__)

PULL_TIMEOUT_S = 5.0
LOOKS_MAX = 64  # at turns that run elsewhere, at a time


class PromptPuller:
    """The shell around `core.pulling`.

    Args:
        on_prompt: called with each start and its prompt; the prompt is None, or `gone`, when the
            frontend does not answer or no longer wants the turn.

    Attributes:
        core: which prompts are wanted.
    """

    def __init__(
        self, bus: Bus, clock: Clock, on_prompt: Callable[[TurnStart, Prompt | None], None]
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._on_prompt = on_prompt
        self.core = Pulling()
        self._tasks = Tasks("pulling prompts failed")
        self._num_forgotten = 0
        self._looks = Tasks("looking at a turn that runs elsewhere failed")

    def __len__(self) -> int:
        return len(self.core)

    def is_pulling(self, turn_id: TurnId) -> bool:
        """Whether an attempt at this turn waits for its prompt."""
        return self.core.is_pulling(turn_id)

    def refs(self) -> list[TurnRef]:
        """Attempts whose prompt is in flight."""
        return self.core.refs()

    def start(self, start: TurnStart) -> None:
        """Hand over this turn's prompt, or pull it soon."""
        prompt = self.core.on_start(start, self._clock.now_ns())
        if prompt is not None:
            self._on_prompt(start, prompt)
        else:
            asyncio.get_running_loop().call_soon(self._flush)

    def cancel(self, turn_id: TurnId, attempt: int) -> None:
        """Forget a turn whose prompt has not come, unless it is of a later attempt (0: any)."""
        self.core.on_cancel(turn_id, attempt)

    def forget(self, tenant: TenantId, session_id: SessionId) -> None:
        """A session was deleted: its prompts in flight do not say so."""
        self._num_forgotten += 1
        self.core.on_forget(tenant, session_id, self._clock.now_ns())

    def look(self, running: RunningTurn, on_prompt: Callable[[Prompt], None]) -> None:
        """Ask for what a turn has that runs elsewhere, and goes on there. Not answered where
        nothing is known of it, or nothing of it may stay here.
        """
        if len(self._looks) < LOOKS_MAX:
            self._looks.spawn(self._look(running, on_prompt))

    async def _look(self, running: RunningTurn, on_prompt: Callable[[Prompt], None]) -> None:
        num_forgotten = self._num_forgotten
        request = PromptPull(turns=[TurnRef(turn_id=running.turn_id)], is_ahead=True)
        reply = await self._ask(request, running.frontend_id)
        for prompt in [] if reply is None else reply.prompts[:1]:
            is_of_it = prompt.turn_id == running.turn_id and not prompt.gone
            # What was deleted meanwhile may be its session.
            if is_of_it and not prompt.is_private and num_forgotten == self._num_forgotten:
                on_prompt(prompt)

    def _flush(self) -> None:
        for pull in self.core.take_pulls():
            self._tasks.spawn(self._pull(pull))

    async def _pull(self, pull: Pull | None) -> None:
        while pull is not None:
            await self._pull_some(pull)
            pull = self.core.again(pull)

    async def _pull_some(self, pull: Pull) -> None:
        reply = await self._ask(PromptPull(turns=pull.refs), pull.frontend_id)
        for start, prompt in self.core.on_reply(pull, reply):
            self._on_prompt(start, prompt)

    async def _ask(self, request: PromptPull, frontend_id: FrontendId) -> PromptReply | None:
        try:
            return await self._bus.request(
                PROMPT_PULL, request, frontend_id, timeout_s=PULL_TIMEOUT_S
            )
        except SymphonyError as error:
            log.warning("no prompt", extra={"frontend": frontend_id, "error": error.message})
            return None
