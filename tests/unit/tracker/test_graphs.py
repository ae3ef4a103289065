"""Call graphs that the tracker begins with."""

from pathlib import Path

import orjson
import pytest

from services.tracker.config import TrackerConfig
from services.tracker.core.agents import AgentLimits, CallGraph, dump_graph
from services.tracker.graphs import read_graphs
from shared.errors import ConfigError
from shared.runtime.config import load_config

LIMITS = AgentLimits()


def write(path: Path, application: str) -> None:
    path.write_bytes(orjson.dumps(dump_graph(CallGraph(LIMITS), application)))


def test_a_file_or_a_folder_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "one.json", "a")
    write(tmp_path / "two.json", "b")
    monkeypatch.setenv("SYMPHONY_AGENT_GRAPHS", str(tmp_path))
    folder = load_config(TrackerConfig).agent_graphs
    assert folder is not None
    assert set(read_graphs(folder, LIMITS)) == {"a", "b"}
    assert set(read_graphs(tmp_path / "two.json", LIMITS)) == {"b"}


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match=r"SYMPHONY_AGENT_GRAPHS: .*bad\.json"):
        read_graphs(tmp_path, LIMITS)
    with pytest.raises(ConfigError, match=r"none\.json"):
        read_graphs(tmp_path / "none.json", LIMITS)
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(ConfigError, match="must be an object"):
        read_graphs(tmp_path, LIMITS)


def test_two_graphs_of_one_application_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "one.json", "a")
    write(tmp_path / "two.json", "a")
    with pytest.raises(ConfigError, match=r"two\.json: another file"):
        read_graphs(tmp_path, LIMITS)
