"""Which of the served models to talk to."""

from collections.abc import Sequence
from dataclasses import dataclass

from cli.chat.sanitise import one_line
from shared.errors import InvalidRequest, NotFound

GENERATE = "generate"
NUM_NAMED_MAX = 20


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An entry of ``/v1/models``."""

    model_id: str
    task: str

    @property
    def can_chat(self) -> bool:
        """Whether it writes text."""
        return self.task == GENERATE


def first_that_chats(served: Sequence[ServedModel]) -> str:
    """The model of a user who named none.

    Raises:
        NotFound: no served model can chat.
    """
    for model in served:
        if model.can_chat:
            return model.model_id
    if not served:
        raise NotFound("no model is served yet")
    names = _named([f"{model.model_id} ({model.task})" for model in served])
    raise NotFound(f"none of the served models can chat: {names}")


def require_chat(served: Sequence[ServedModel], wanted: str) -> str:
    """`wanted`, if one can chat with it.

    Raises:
        NotFound: it is not served.
        InvalidRequest: it has another task.
    """
    tasks = {model.model_id: model.task for model in served}
    if tasks.get(wanted) == GENERATE:
        return wanted
    names = [model.model_id for model in served if model.can_chat]
    instead = f"--model can be one of {_named(names)}" if names else "nothing that is served can"
    if wanted in tasks:
        task = one_line(tasks[wanted])
        raise InvalidRequest(f"{one_line(wanted)} cannot chat, its task is {task}; {instead}")
    raise NotFound(f"{one_line(wanted)} cannot chat, it is not served; {instead}")


def _named(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > NUM_NAMED_MAX else ""
    return ", ".join(one_line(name, 100) for name in names[:NUM_NAMED_MAX]) + more
