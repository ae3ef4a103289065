"""Options of a run."""

from dataclasses import dataclass, fields
from typing import Any

PROFILES = ("chat", "prefill", "agents", "adapters", "replay")
OPEN = "open"  # is no users of Locust: see `loadtest.users.open_loop`


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of a run; `locustfile` describes each."""

    url: str
    profile: str = "chat"
    users: int = 1
    duration_s: float = 60.0
    hints: float = 0.5
    faster: float = 1.0
    seed: int = 0
    api_key: str = ""
    cert: str = ""
    model: str = ""
    run_id: str = ""
    out: str = ""
    popularity: str = "zipf:1"
    trace: str = ""
    prompt_tokens: int = 1024
    watch: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For the report: everything but secrets and places."""
        hidden = {"api_key", "cert", "out", "watch", "run_id", "url"}
        irrelevant = {
            name
            for name, profile in (
                ("popularity", "adapters"),
                ("trace", "replay"),
                ("prompt_tokens", "prefill"),
            )
            if self.profile != profile
        }
        if self.profile == OPEN:
            irrelevant.add("users")
        left = [each.name for each in fields(self) if each.name not in hidden | irrelevant]
        return {name: getattr(self, name) for name in left}
