"""How families of models write calls.

| family | writes |
|---|---|
| `hermes` | ``<tool_call>{"name": "f", "arguments": {}}</tool_call>`` (Hermes, Qwen 2.5 and 3) |
| `llama3` | ``{"name": "f", "parameters": {}}`` and nothing else, maybe behind ``<|python_tag|>`` |
| `mistral` | ``[TOOL_CALLS]`` and a list of calls, or ``[TOOL_CALLS]f[ARGS]{}`` |
| `json` | a call or a list of calls as JSON, and nothing else: models without a way of their own |
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Family:
    """Attributes:
    marker: what comes before calls; empty: nothing.
    end: what comes behind each.
    is_bare: a reply that begins with JSON may be a call, without a marker.
    argument_marker: between a name outside of JSON and its arguments.
    id_marker: before that, and behind it what the model calls the call.
    id_chars: letters and digits of a call's id, where templates insist; 0: any.
    """

    name: str
    marker: str = ""
    end: str = ""
    is_bare: bool = False
    argument_marker: str = ""
    id_marker: str = ""
    id_chars: int = 0

    @property
    def is_marked(self) -> bool:
        """Whether its mark separates calls from all else that is said."""
        return bool(self.marker) and not self.is_bare


FAMILIES = {
    family.name: family
    for family in (
        Family("hermes", marker="<tool_call>", end="</tool_call>"),
        Family("llama3", marker="<|python_tag|>", is_bare=True),
        Family(
            "mistral",
            marker="[TOOL_CALLS]",
            argument_marker="[ARGS]",
            id_marker="[CALL_ID]",
            id_chars=9,
        ),
        Family("json", is_bare=True),
    )
}


def family_of(template: str) -> Family:
    """That of a model whose chat template this is.

    >>> family_of("{{ '<tool_call>' }}").name, family_of("{{ messages }}").name
    ('hermes', 'json')
    """
    for family in FAMILIES.values():
        if family.marker and family.marker in template:
            return family
    # Llama's templates name the tag only where they describe built-in tools.
    return FAMILIES["llama3" if "ipython" in template else "json"]


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the client."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a tool begins; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    """More of the JSON that the last call's arguments are."""

    text: str


Event: TypeAlias = Said | Called | Argued
