"""Work that is done in steps, so that no caller waits for long."""

from services.kvstore.core.base.effects import DoMore, Effect


class Steps:
    """The shell is asked for one next step at a time, whatever it is needed for."""

    def __init__(self) -> None:
        self._is_asked_for = False

    def ask(self, effects: list[Effect]) -> None:
        """Something is left for the next step."""
        if not self._is_asked_for:
            self._is_asked_for = True
            effects.append(DoMore())

    def begin(self) -> None:
        """The one that was asked for."""
        self._is_asked_for = False
