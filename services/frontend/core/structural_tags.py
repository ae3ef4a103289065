"""Replies that say what they like, with parts between marks that are held to schemas.

Source: the ``structural_tag`` of vLLM and SGLang, by its older form: ``structures``, each with what
begins and what ends it, and ``triggers``, texts behind which one of those has to follow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.frontend.core.structures import embedded, literal

TAGS_MAX = 256
TEXT_CHARS_MAX = 1024
ANY_TEXT = "/(?s:.*)/"


@dataclass(frozen=True, slots=True)
class Tag:
    """A part that is held to a schema."""

    begin: str
    schema: dict[str, Any] | bool
    end: str


def parse_tags(given: Mapping[str, Any]) -> dict[str, list[Tag]]:
    """Tags by what triggers them.

    Raises:
        ValueError: it is something else; says what.
    """
    if "format" in given:
        raise ValueError("only the form with structures and triggers is served")
    structures, triggers = given.get("structures"), given.get("triggers")
    if not isinstance(structures, list) or not 0 < len(structures) <= TAGS_MAX:
        raise ValueError(f"structures: give 1 to {TAGS_MAX}")
    if not isinstance(triggers, list) or not 0 < len(triggers) <= TAGS_MAX:
        raise ValueError(f"triggers: give 1 to {TAGS_MAX} texts")
    by_trigger: dict[str, list[Tag]] = {
        _text(trigger, "triggers", least=1): [] for trigger in triggers
    }
    for structure in structures:
        if not isinstance(structure, dict):
            raise ValueError("structures: give objects with begin, schema and end")
        begin = _text(structure.get("begin"), "begin", least=1)
        end = _text(structure.get("end"), "end")
        schema = structure.get("schema", True)
        if not isinstance(schema, dict | bool):
            raise ValueError("schema: give a JSON schema")
        found = [trigger for trigger in by_trigger if begin.startswith(trigger)]
        if len(found) != 1:
            num = "none" if not found else "more than one"
            raise ValueError(f"{num} of the triggers begins {begin[:40]!r}")
        by_trigger[found[0]].append(Tag(begin, schema, end))
    for trigger, tags in by_trigger.items():
        if not tags:
            raise ValueError(f"nothing begins with the trigger {trigger[:40]!r}")
    return by_trigger


def tags_grammar(tags: Mapping[str, list[Tag]], marked: Callable[[str], str]) -> str:
    """What a reply may be, in Lark's words.

    Args:
        marked: a mark as the model's vocabulary has it: a text, or one token.
    """
    lines = ["start: (" + " | ".join(f"part_{at}" for at in range(len(tags))) + ")* TEXT"]
    lines.append(f"TEXT: {ANY_TEXT}")
    for at, (trigger, its) in enumerate(tags.items()):
        lines += lead(f"lead_{at}", marked(trigger))
        bodies = [f"body_{at}_{number}" for number in range(len(its))]
        lines.append(f"part_{at}: lead_{at} ({' | '.join(bodies)})")
        for body, tag in zip(bodies, its, strict=True):
            words = [embedded(tag.schema)]
            if rest := tag.begin.removeprefix(trigger):
                words.insert(0, literal(rest))
            if tag.end:
                words.append(marked(tag.end))
            lines.append(f"{body}: {' '.join(words)}")
    return "\n".join(lines) + "\n"


def lead(name: str, mark: str) -> list[str]:
    """Rules of any text up to a mark, as a rule has it: a literal, or a token, which no text is."""
    if mark.startswith('"'):
        return [f"{name}[lazy]: {ANY_TEXT} {mark}"]
    return [f"{name}: TEXT {mark}"]


def _text(given: Any, name: str, least: int = 0) -> str:
    if not isinstance(given, str) or not least <= len(given) <= TEXT_CHARS_MAX:
        raise ValueError(f"{name}: give a text of {least} to {TEXT_CHARS_MAX} characters")
    return given
