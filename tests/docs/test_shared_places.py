"""Where the sources name a place in which every user can make files."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = re.compile(r"gettempdir\(|/dev/shm|[\"'f]/tmp\b|mktemp\(|/var/tmp|/run/lock")
# Each looks before use at whose the folder is (`shared.private`), or only speaks of the place.
KNOWN = {
    "cli/start/hosts.py",
    "cli/start/options.py",
    "services/kvstore/config.py",
    "shared/private.py",
    "kernels/compile_lock.py",
}


def test_every_name_in_a_shared_place_is_known() -> None:
    """A new one is to be taken by `unheld` and `make_private`, so that no other user can take it
    first or lead it elsewhere.
    """
    found = {
        str(path.relative_to(ROOT))
        for part in ("cli", "services", "shared", "kernels")
        for path in (ROOT / part).rglob("*.py")
        if PLACES.search(path.read_text())
    }
    assert found <= KNOWN, found - KNOWN
