"""Links of pages, which are right in the repository, made right in the site.

There what is in docs/ stands at the top, README is the first page, READMEs of other folders keep
their place, and any other file of the repository is a page that shows it, below ``repository/``.
"""

import posixpath
import re
from collections.abc import Callable

_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]*)(#[^)\s]*)?(\))")
_IMAGE = re.compile(r'(<img src=")([^"]+)()(")')
ABROAD = ("http://", "https://", "mailto:")
DOCS = "docs/"
SHOWN = "repository/"


def place_in_site(path: str) -> str:
    """Where a file of the repository is in the site.

    >>> [place_in_site(path) for path in ("README.md", "docs/api.md", "clients/python/README.md")]
    ['index.md', 'api.md', 'clients/python/README.md']
    >>> place_in_site("Dockerfile")
    'repository/Dockerfile.md'
    """
    if path == "README.md":
        return "index.md"
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    return path if path.endswith("README.md") else f"{SHOWN}{path}.md"


def targets(path: str, text: str) -> set[str]:
    """Files of the repository that the page at `path` links to."""
    found: set[str] = set()

    def note(target: str) -> str:
        found.add(_resolved(path, target))
        return target

    _each_link(text, note)
    return found


def for_site(path: str, text: str) -> str:
    """The page at `path`, whose links are those of the site.

    >>> for_site("docs/chat.md", "[x](../clients/python/README.md#frameworks), `[y](../z)`")
    '[x](clients/python/README.md#frameworks), `[y](../z)`'
    """
    here = posixpath.dirname(place_in_site(path))

    def moved(target: str) -> str:
        return posixpath.relpath(place_in_site(_resolved(path, target)), here or ".")

    return _each_link(text, moved)


def _resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _each_link(text: str, change: Callable[[str], str]) -> str:
    """`text` with each link to a file changed, but for what is code."""

    def one(found: re.Match[str]) -> str:
        begin, target, anchor, end = found.groups()
        if not target or target.startswith(ABROAD):
            return found[0]
        return f"{begin}{change(target)}{anchor or ''}{end}"

    parts = _CODE.split(text)
    return "".join(
        part if at % 2 else _IMAGE.sub(one, _LINK.sub(one, part)) for at, part in enumerate(parts)
    )


def anchor(title: str, separator: str = "-") -> str:
    """The anchor of a heading, as GitHub makes it.

    >>> anchor("SYMPHONY's figures: `bench figures`")
    'symphonys-figures-bench-figures'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", separator)
