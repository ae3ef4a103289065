"""Folders that are made once and are whole when they are there."""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".unfinished-"  # begins the names of what is not whole


@contextmanager
def made_once(folder: Path) -> Iterator[Path | None]:
    """An empty folder to build `folder` in, which takes that name in the end: one that exists is
    whole. None if it exists already. Of two who come at once, one waits for the other.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            yield None
            return
        for left_behind in folder.parent.glob(f"{UNFINISHED}*"):  # by one that was killed
            shutil.rmtree(left_behind)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=UNFINISHED) as temporary:
            building = Path(temporary) / "model"
            building.mkdir()
            yield building
            building.rename(folder)
