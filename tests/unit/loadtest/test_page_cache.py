import os
from pathlib import Path

from loadtest.bench.page_cache import cached_share, drop_cached


def test_what_was_just_written_is_held_until_it_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    assert cached_share(path) > 0.9
    os.sync()
    assert drop_cached(path) == (cached_share(path) <= 0.01)


def test_an_empty_file_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert cached_share(path) == 0.0 and drop_cached(path)
