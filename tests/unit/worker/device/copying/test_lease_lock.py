"""The lock of processes that write to leased pages."""

import fcntl
import os
import stat
from pathlib import Path

import pytest

from services.worker.device.copying.lease_lock import LeaseLock


def is_free(path: Path) -> bool:
    """Whether the kvstore would take leased pages back."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.timeout(60)  # a lock that is not shared is waited for without end
def test_pages_are_taken_back_when_no_process_has_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    first, second = LeaseLock(str(path)), LeaseLock(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first.close()
    assert not is_free(path)
    second.close()
    assert is_free(path)


def test_a_link_to_another_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lease").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="lease"):
        LeaseLock(str(tmp_path / "lease"))
    assert not os.path.lexists(tmp_path / "other")
