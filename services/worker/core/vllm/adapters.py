"""Which adapters vLLM holds. It is never asked for more than it has room for, so that it drops none
by itself: one that it has to load again in a step, and whose files are gone, ends the engine.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRoom:
    """Attributes:
    lines_max: adapters that can be in one step.
    resident_max: adapters that vLLM keeps in host memory.
    """

    lines_max: int = 0
    resident_max: int = 0


@dataclass(slots=True, eq=False)
class HeldAdapter:
    """An adapter in vLLM, or on its way there.

    Attributes:
        name: its content hash; vLLM keeps KV apart by it.
        number: by which vLLM knows it; no other load has it as long as the process lives.
        users: turns that run on it or wait for it.
        is_loaded: vLLM has it.
    """

    name: str
    number: int
    users: int = 0
    is_loaded: bool = False


@dataclass(slots=True)
class AdapterBook:
    """Attributes:
    capacity: adapters that vLLM has room for in host memory.
    """

    capacity: int
    _held: dict[str, HeldAdapter] = field(default_factory=dict)  # the latest used last
    _last_number: int = 0

    def get(self, name: str) -> HeldAdapter | None:
        """The adapter, loaded or loading."""
        return self._held.get(name)

    def take(self, name: str) -> tuple[HeldAdapter | None, HeldAdapter | None]:
        """A turn has come for an adapter: that, new if it was not here, and what has to leave for
        it. None of both: every place is in use.
        """
        held, leaves = self._held.pop(name, None), None
        if held is None:
            if len(self._held) >= self.capacity and (leaves := self._idle()) is None:
                return None, None
            if leaves is not None:
                del self._held[leaves.name]
            held = self._new(name)
        held.users += 1
        self._held[name] = held
        return held, leaves

    def expect(self, name: str) -> HeldAdapter | None:
        """A turn on it was announced: the adapter if it is to be loaded now, which is so where
        there is a free place. It is used until `release`.
        """
        if name in self._held or len(self._held) >= self.capacity:
            return None
        held = self._held[name] = self._new(name)
        held.users = 1
        return held

    def release(self, held: HeldAdapter) -> None:
        """A use of it is over."""
        held.users -= 1

    def drop(self, held: HeldAdapter) -> None:
        """It could not be loaded."""
        if self._held.get(held.name) is held:
            del self._held[held.name]

    @property
    def resident(self) -> list[str]:
        """Names of those that vLLM has, the latest used first."""
        return [held.name for held in reversed(self._held.values()) if held.is_loaded]

    def _idle(self) -> HeldAdapter | None:
        """The one that no turn uses for the longest time."""
        return next((held for held in self._held.values() if not held.users), None)

    def _new(self, name: str) -> HeldAdapter:
        self._last_number += 1
        return HeldAdapter(name, self._last_number)
