"""`bench assist` at a tiny size: all its figures, and none where helpers are wrong."""

import pytest
import torch

from loadtest.bench import assist
from loadtest.bench.assist import layer
from shared.errors import InvalidRequest

TINY = ["--hidden", "64", "--ranks", "4,8", "--helpers", "1", "--rounds", "2"]


def test_every_figure_is_there() -> None:
    sizes = ["--tokens", "1,9", "--handoff-tokens", "8", "--receivers", "2"]
    figures = assist.run([*TINY, *sizes])
    assert figures["helpers"] == 1
    keys = [("tokens", "receivers"), ("lora_rank", "tokens"), ("lora_rank", "tokens")]
    kinds = ["handoff_ms", "tokens_per_core", "processes_over_threads"]
    want = [
        [(8, 2)],
        [(4, 1), (4, 9), (8, 1), (8, 9)],
        [(4, 1), (4, 9), (8, 1), (8, 9)],
    ]
    for kind, (first, second), cells in zip(kinds, keys, want, strict=True):
        assert [(row[first], row[second]) for row in figures[kind]] == cells
        assert all(value > 0 for row in figures[kind] for value in row.values())
    assert figures["handoff_ms"][0].keys() >= {"shm", "socket", "socket_over_shm"}
    assert figures["processes_over_threads"][0].keys() >= {"processes", "torch", "kernel"}


def test_nothing_is_measured_where_helpers_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor, y: torch.Tensor, *arguments: object) -> torch.Tensor:
        return y.double() + 1

    monkeypatch.setattr(layer, "add_lora_reference", wrong)
    with pytest.raises(AssertionError, match="the crew is wrong"):
        assist.run([*TINY, "--tokens", "4"])


@pytest.mark.parametrize("option", ["--tokens", "--ranks", "--receivers"])
@pytest.mark.parametrize("value", ["0", "1,x", ""])
def test_a_wrong_option_is_refused(option: str, value: str) -> None:
    with pytest.raises(InvalidRequest):
        assist.run([*TINY, option, value])
