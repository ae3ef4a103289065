"""Which of a stranger's regular expressions match which modules, in limited time.

Plain names, which most are, are matched here. All others are matched in a process of their own,
that is killed when it takes too long: Python's `re` cannot be stopped.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

from shared.adapters.config import AdapterInvalid, shown

TIMEOUT_S = 2.0
MEMORY_BYTES = 1 << 29
PLAIN_MAX = 1024  # takes 0.3 s at most

_PLAIN = re.compile(r"\^?(?:\.\*\\?\.)?(?:[\w-]|\\?\.)+", re.ASCII)  # nothing to go back and forth
_CHILD = """
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
patterns, names = json.load(sys.stdin)
try:
    found = [re.compile(rf"(.*\\.)?({each})$") for each in patterns]
    first = lambda name: next((at for at, each in enumerate(found) if each.match(name)), None)
    print(json.dumps([first(name) for name in names]))
except (re.error, RecursionError, OverflowError, MemoryError) as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
""".replace("MEMORY", str(MEMORY_BYTES))


def first_matches(field: str, patterns: Iterable[str], names: Sequence[str]) -> dict[str, str]:
    """The first of the patterns that matches a name, by name; one that none matches is missing.

    Args:
        field: of the config, for messages.
        names: of modules.

    Raises:
        AdapterInvalid: a pattern is no regular expression, or takes too long.

    Source: PEFT, `get_pattern_key`.

    >>> first_matches("r", ["q_proj", ".*1.*"], ["h.0.q_proj", "h.1.q_proj", "h.1.up"])
    {'h.0.q_proj': 'q_proj', 'h.1.q_proj': 'q_proj', 'h.1.up': '.*1.*'}
    """
    ordered = list(patterns)
    if not ordered or not names:
        return {}
    if len(ordered) <= PLAIN_MAX and all(map(_PLAIN.fullmatch, ordered)):
        places = _match_here(ordered, names)
    else:
        places = _match_apart(field, ordered, names)
    found = zip(names, places, strict=True)
    return {name: ordered[place] for name, place in found if place is not None}


def targeted(field: str, targets: frozenset[str] | str | None, names: Sequence[str]) -> set[str]:
    """The names that a config targets or excludes.

    Args:
        targets: ends of names, or one regular expression of a whole name; None: no name.

    Raises:
        AdapterInvalid: it is no regular expression, or takes too long.

    Source: PEFT, `check_target_module_exists`.

    >>> sorted(targeted("target_modules", frozenset({"q", "1.up"}), ["h.0.q", "h.1.up", "h.0.up"]))
    ['h.0.q', 'h.1.up']
    """
    if targets is None:
        return set()
    if isinstance(targets, str):
        return set(first_matches(field, [f"^(?:{targets})"], names))
    return {
        name
        for name in names
        if name in targets or any(name[at + 1 :] in targets for at in _dots(name))
    }


def _dots(name: str) -> list[int]:
    return [at for at, character in enumerate(name) if character == "."]


def _match_here(patterns: list[str], names: Sequence[str]) -> list[int | None]:
    """For each name, which pattern is the first that matches."""
    ready = [re.compile(rf"(.*\.)?({each})$") for each in patterns]
    return [next((at for at, each in enumerate(ready) if each.match(name)), None) for name in names]


def _match_apart(field: str, patterns: list[str], names: Sequence[str]) -> list[int | None]:
    """The same, in a process that can be killed."""
    command = [sys.executable, "-I", "-S", "-c", _CHILD]
    asked = json.dumps([patterns, list(names)]).encode()
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise AdapterInvalid(
            field, f"takes longer than {TIMEOUT_S:g} s to match: {shown(patterns)}"
        ) from None
    answer = json.loads(done.stdout) if done.returncode == 0 and done.stdout else "out of memory"
    if isinstance(answer, str):
        raise AdapterInvalid(field, f"is no regular expression: {shown(patterns)}: {answer[:200]}")
    places: list[int | None] = answer
    return places
