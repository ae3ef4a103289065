"""Folders in places where every user can create some."""

import os
import re
import secrets
import shutil
import stat
from glob import escape
from pathlib import Path

from shared.errors import ConfigError

WORD_BYTES = 8
_WORD = secrets.token_hex(WORD_BYTES)
PRIVATE_UMASK = 0o077  # of all our processes: files hold users' words, or lead to them


def check_private(folder: Path, name: str) -> None:
    """Check that a folder, if it is there, is this user's alone. Then no other user can plant files
    or links in it, or move it where only owners may, as in ``/dev/shm``.

    Raises:
        ConfigError: it is another user's, others may enter it, or it is no folder; names `name`.
    """
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{name}={str(folder)!r}: {error.strerror}") from None
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        why = "a symbolic link, not a folder"
    elif not stat.S_ISDIR(status.st_mode):
        why = "no folder"
    elif status.st_uid != os.geteuid():
        why = f"it belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif mode & 0o077:
        why = f"others may enter it (mode {mode:04o}): it must be 0700"
    else:
        return
    raise ConfigError(f"{name}={str(folder)!r}: {why}; remove it or use another")


def unheld(folder: Path) -> Path:
    """A folder's path in a place where every user can create some: this one, or where another user
    has taken that name, one that could not be guessed before this process began.
    """
    try:
        is_held = folder.lstat().st_uid != os.geteuid()
    except OSError:
        return folder
    return folder.with_name(f"{folder.name}-{_WORD}") if is_held else folder


def remove_unheld(folder: Path) -> None:
    """Remove a folder of ours by this name, and those that took its place (`unheld`)."""
    for each in folder.parent.glob(f"{escape(folder.name)}*"):
        if re.fullmatch(rf"(-[0-9a-f]{{{2 * WORD_BYTES}}})?", each.name[len(folder.name) :]):
            remove_private(each)


def make_private(folder: Path, name: str) -> None:
    """Make a folder that only this user can enter, unless it is there.

    Raises:
        ConfigError: it cannot be made, or `check_private` refuses the one that is there.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{name}={str(folder)!r}: {error.strerror}") from None
    check_private(folder, name)


def make_new(path: Path) -> int:
    """Make a file that only this user can read, in place of what had its name; open for reading
    and writing. Links are replaced, never followed.

    Raises:
        OSError: it cannot be made, or one is made at the same time.
    """
    path.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def remove_private(folder: Path) -> None:
    """Remove a folder of ours and what is in it, or a link of that name but not what it leads to.
    What is another user's stays.
    """
    try:
        status = folder.lstat()
        if status.st_uid != os.geteuid():
            return
        if not stat.S_ISDIR(status.st_mode):
            folder.unlink()
            return
    except OSError:
        return
    shutil.rmtree(folder, ignore_errors=True)  # it follows no links
