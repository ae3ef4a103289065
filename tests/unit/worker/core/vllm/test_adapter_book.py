"""Which adapters vLLM holds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.worker.core.vllm.adapters import AdapterBook, HeldAdapter

NAMES = st.sampled_from("abcdef")


class Books(RuleBasedStateMachine):
    """A book, and a vLLM that has what it was asked to load and to drop."""

    @initialize(capacity=st.integers(1, 3))
    def begin(self, capacity: int) -> None:
        self.capacity = capacity
        self.book = AdapterBook(capacity)
        self.uses: list[HeldAdapter] = []
        self.loaded: dict[int, str] = {}
        self.numbers: set[int] = set()

    def _load(self, held: HeldAdapter) -> None:
        if held.number in self.loaded:
            return
        assert held.number not in self.numbers, "numbers are used once"
        self.numbers.add(held.number)
        self.loaded[held.number] = held.name
        held.is_loaded = True

    @rule(name=NAMES)
    def take(self, name: str) -> None:
        before = set(self.book.resident)
        held, leaves = self.book.take(name)
        if held is None:
            assert leaves is None and name not in before
            assert len({each.name for each in self.uses}) == self.capacity, "all are in use"
            return
        if leaves is not None:
            assert leaves not in self.uses and leaves.name != name
            del self.loaded[leaves.number]
        self.uses.append(held)
        self._load(held)
        assert self.book.resident[0] == name, "the latest used"

    @rule(name=NAMES)
    def expect(self, name: str) -> None:
        is_free = len(self.loaded) < self.capacity and name not in self.loaded.values()
        held = self.book.expect(name)
        assert (held is not None) == is_free
        if held is not None:
            self._load(held)
            self.book.release(held)

    @precondition(lambda self: self.uses)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.uses) - 1))
        self.book.release(self.uses.pop(at))

    @rule(name=NAMES)
    def fail(self, name: str) -> None:
        """A load that comes to nothing."""
        held, leaves = self.book.take(name)
        if leaves is not None:
            del self.loaded[leaves.number]
        if held is None:
            return
        if not held.is_loaded:
            self.book.drop(held)
        self.book.release(held)

    @invariant()
    def vllm_has_what_the_book_says(self) -> None:
        assert len(self.loaded) <= self.capacity
        assert sorted(self.loaded.values()) == sorted(self.book.resident)
        assert {each.number for each in self.uses} <= set(self.loaded)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
