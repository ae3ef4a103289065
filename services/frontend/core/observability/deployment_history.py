"""Ten minutes of the figures that the dashboard draws, one point every ten seconds."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

STEP_S = 10.0
KEPT_S = 600.0
POINTS_MAX = int(KEPT_S / STEP_S) + 1
EARLY_S = 0.5  # a view that comes by so much too early still makes its point

FIGURES = {
    "running": ("turns", "running"),
    "waiting": ("turns", "waiting"),
    "requests": ("rates", "requests"),
    "errors": ("rates", "errors"),
    "prompt_tokens": ("rates", "prompt_tokens"),
    "generated_tokens": ("rates", "generated_tokens"),
    "cached_share": ("cached_share",),
    "ttft_p50": ("latency_ms", "ttft", "p50"),
    "ttft_p99": ("latency_ms", "ttft", "p99"),
    "inter_token_p50": ("latency_ms", "inter_token", "p50"),
    "inter_token_p99": ("latency_ms", "inter_token", "p99"),
}


class DeploymentHistory:
    """Fed with each view of the deployment; keeps those that are a step apart."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=POINTS_MAX)

    def on_view(self, view: Mapping[str, Any]) -> None:
        """Keep its figures if the last point is a step old. After a clock was set back the history
        starts again: points are drawn by their time.
        """
        at_s = view["at"]
        points = self._points
        if points and at_s < points[-1][0]:
            points.clear()
        if points and at_s < points[-1][0] + STEP_S - EARLY_S:
            return
        points.append((at_s, {name: _get(view, path) for name, path in FIGURES.items()}))

    def columns(self, now_s: float) -> dict[str, Any]:
        """The points of the last `KEPT_S`, the oldest first, as one list a figure."""
        points = [(at_s, point) for at_s, point in self._points if at_s >= now_s - KEPT_S]
        columns = {name: [point[name] for _, point in points] for name in FIGURES}
        return {"step_s": STEP_S, "at": [at_s for at_s, _ in points], **columns}


def _get(view: Mapping[str, Any], path: Sequence[str]) -> Any:
    for name in path:
        view = view[name]
    return view
