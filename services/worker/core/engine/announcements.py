"""What announced turns will run on is loaded shortly before they arrive, and kept until they do."""

from dataclasses import dataclass, field

from services.worker.core.adapters.adapters import Adapters
from services.worker.core.effects import Effect, ReleaseTicket
from services.worker.core.engine_limits import Estimates
from services.worker.core.kv.expecting import (
    Expected,
    Expecting,
    asked_at,
    prefetched,
    start_at_ns,
)
from services.worker.core.kv.staged import Staged
from services.worker.core.kv.staging import Stager
from services.worker.core.kv.write_behind import WriteBehind
from shared.owners import OwnerKey


@dataclass(slots=True)
class Announcements:
    """Announced turns of one engine, at most one a session.

    Attributes:
        max_model_len: tokens that a turn is taken to have whose length is not known.
        block_bytes: of one block, all its layers, below the pool.
    """

    stager: Stager
    write_behind: WriteBehind
    adapters: Adapters
    estimates: Estimates
    max_model_len: int
    block_tokens: int
    block_bytes: int
    expecting: Expecting = field(default_factory=Expecting, init=False)

    def on_announced(self, expected: Expected, now_ns: int) -> list[Effect]:
        """A turn was announced, and is to come here."""
        at_ns = start_at_ns(expected, self._num_bytes(expected), self.estimates, now_ns)
        self.adapters.unexpect(expected.owner)
        if at_ns > now_ns:
            self.expecting.wait(expected, at_ns)
            return []
        self.expecting.drop(expected.owner)
        return self._ask(expected, now_ns)

    def withdraw(self, owner: OwnerKey) -> None:
        """The session's turn is here, or will not come: nothing more is asked for it."""
        self.expecting.drop(owner)
        self.adapters.unexpect(owner)

    def on_staged(self, number: int, staged: Staged | None, now_ns: int) -> list[Effect]:
        """The kvstore's answer for an announced session; None if it could not be asked."""
        expected = self.expecting.answered(number)
        if staged is None:
            return [] if expected is None else prefetched(expected, 0, 0)
        if expected is None:  # withdrawn
            return [ReleaseTicket(staged.ticket)]
        if staged.num_blocks == 0:  # deleted since
            return [ReleaseTicket(staged.ticket), *prefetched(expected, 0, 0)]
        owner, maker = expected.owners
        effects = self.stager.expect(staged, (owner, ""), maker, expected, now_ns)
        return effects + self.stager.pump(now_ns)

    def ask_for_due(self, now_ns: int) -> list[Effect]:
        """Ask the kvstore for what is needed soon."""
        effects: list[Effect] = []
        for expected in self.expecting.take_due(now_ns):
            effects += self._ask(expected, now_ns)
        return effects

    def _num_bytes(self, expected: Expected) -> int:
        num_tokens = expected.num_tokens or self.max_model_len
        num_blocks = -(-num_tokens // self.block_tokens) + expected.num_image_blocks
        return num_blocks * self.block_bytes

    def _ask(self, expected: Expected, now_ns: int) -> list[Effect]:
        if not self.write_behind.is_connected:
            return []
        expected = asked_at(expected, now_ns)
        return [self.expecting.ask(expected), *self.adapters.expect(expected)]
