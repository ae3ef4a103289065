"""Every turn that an engine holds, waiting or running, and who goes first."""

from collections import deque
from dataclasses import dataclass, field

from services.worker.core.turns.turn import NO_SLOT, Turn
from shared.ids import TurnId


@dataclass(slots=True)
class TurnQueue:
    """Attributes:
    running_max: turns in one step; as many lines have the executor's block tables.
    turns: by id, the latest attempt of each that is not over.
    waiting: by priority, then arrival; one that ran goes to the front of its priority.
    running: in order of admission.
    """

    running_max: int
    turns: dict[TurnId, Turn] = field(default_factory=dict)
    waiting: "deque[Turn]" = field(default_factory=deque)
    running: list[Turn] = field(default_factory=list)
    _slots: list[int] = field(init=False)  # free lines of the block tables

    def __post_init__(self) -> None:
        self._slots = list(range(self.running_max))

    @property
    def is_full(self) -> bool:
        """Whether no more turns can run."""
        return len(self.running) >= self.running_max

    @property
    def prefilling(self) -> list[Turn]:
        """Turns that run, of whose prompts not all is in a step yet."""
        return [turn for turn in self.running if turn.can_run and not turn.is_decoding]

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens that are in no step yet, without those whose KV is here, loading, or
        staged; while the kvstore has not answered, as many as the session left count as staged."""
        waiting = sum(turn.num_to_compute for turn in self.waiting if not turn.is_paused)
        return waiting + sum(len(turn.tokens) - turn.num_planned for turn in self.prefilling)

    def next_deadline_ns(self) -> int | None:
        """When an answer of the kvstore is overdue, or history is, or a pass need not wait for it
        any more."""
        deadlines = [
            turn.cache.prefix.answer_due_at_ns
            for turn in self.waiting
            if turn.cache.prefix.is_asked
        ]
        for turn in self.running:
            if turn.cache.prefix.coming and turn.can_run:
                deadlines.append(min(turn.look_again_at_ns, turn.cache.prefix.give_up_at_ns))
        return min(deadlines, default=None)

    def add(self, turn: Turn) -> None:
        """A new turn waits behind those of its priority."""
        self.turns[turn.request.turn_id] = turn
        position = len(self.waiting)
        while position and self.waiting[position - 1].request.priority < turn.request.priority:
            position -= 1
        self.waiting.insert(position, turn)

    def start(self, turn: Turn) -> None:
        """A waiting turn gets its place in the batch."""
        self.waiting.remove(turn)
        self.running.append(turn)
        turn.slot = self._slots.pop()

    def put_back(self, turn: Turn) -> None:
        """A running turn waits again, before those of its priority."""
        self.remove(turn)
        position = 0
        while (
            position < len(self.waiting)
            and self.waiting[position].request.priority > turn.request.priority
        ):
            position += 1
        self.waiting.insert(position, turn)

    def remove(self, turn: Turn) -> None:
        """A turn neither waits nor runs any more."""
        if turn.slot == NO_SLOT:
            self.waiting.remove(turn)
            return
        self.running.remove(turn)
        self._slots.append(turn.slot)
        turn.slot = NO_SLOT

    def victim(self) -> Turn:
        """The running turn to preempt: of the lowest priority, the one that was admitted last."""
        lowest = min(turn.request.priority for turn in self.running)
        return next(turn for turn in reversed(self.running) if turn.request.priority == lowest)
