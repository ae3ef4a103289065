"""The last ten minutes of the deployment's figures."""

from typing import Any

from services.frontend.core.observability.deployment_history import (
    KEPT_S,
    POINTS_MAX,
    STEP_S,
    DeploymentHistory,
)
from services.frontend.core.observability.deployment_view import Answers, DeploymentView


def view_at(at_s: float, running: int = 0) -> dict[str, Any]:
    view = DeploymentView().on_answers(Answers({}, [], [], []), int(at_s * 1e9), at_s)
    return {**view, "turns": {**view["turns"], "running": running}}


def test_points_are_a_step_apart_and_ten_minutes_are_kept() -> None:
    history = DeploymentHistory()
    for second in range(0, 3_000, 2):
        history.on_view(view_at(second, running=second))
    kept = history.columns(2_998)
    assert kept["at"][-1] == 2_990 and kept["at"][0] >= 2_998 - KEPT_S
    assert POINTS_MAX - 2 <= len(kept["at"]) <= POINTS_MAX
    steps = {late - early for early, late in zip(kept["at"], kept["at"][1:], strict=False)}
    assert steps == {STEP_S}
    assert kept["running"] == kept["at"] and kept["ttft_p50"] == [None] * len(kept["at"])


def test_what_is_older_than_ten_minutes_is_not_shown() -> None:
    history = DeploymentHistory()
    history.on_view(view_at(0))
    history.on_view(view_at(400))
    assert history.columns(700)["at"] == [400]
    assert history.columns(2_000)["at"] == []


def test_it_starts_again_after_a_clock_was_set_back() -> None:
    history = DeploymentHistory()
    history.on_view(view_at(5_000))
    history.on_view(view_at(100))
    assert history.columns(101)["at"] == [100]
