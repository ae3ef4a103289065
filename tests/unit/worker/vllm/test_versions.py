"""Which versions of vLLM are taken."""

from importlib.metadata import PackageNotFoundError

import pytest

from services.worker.vllm import versions
from shared.errors import ConfigError


@pytest.mark.parametrize("found", ["0.32.0", "0.32.1+cpu", "0.32.0rc1"])
def test_versions_within_the_range_are_taken(found: str) -> None:
    versions.check_version(found)


@pytest.mark.parametrize("found", ["0.31.9", "0.33.0", "1.0.0", "dev", ""])
def test_any_other_is_refused_by_name(found: str) -> None:
    with pytest.raises(ConfigError, match=f"vLLM {found}.*{versions.RANGE}"):
        versions.check_version(found)


def test_without_vllm_the_error_says_where_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", nothing)
    with pytest.raises(ConfigError, match=r"docs/engines\.md"):
        versions.check_installed()
