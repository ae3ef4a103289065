"""A deployment for tests that look at it from outside: small, patient, and its logs are printed
when a test fails.
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from openai import OpenAI
from redis import Redis

from loadtest.deployment import Deployment

# Workers and kvstores are started again and again: each fills its pages with zeros first.
SMALL = {"SYMPHONY_KV_BYTES": str(1 << 28), "SYMPHONY_ARENA_BYTES": str(1 << 27)}
# On a machine that stalls, a worker that died may take a minute to be back.
PATIENT = {"SYMPHONY_SCHEDULER_PLACEMENT_WAIT_S": "120"}


class Cluster(Deployment):
    """See the module and `Deployment`."""

    def __init__(
        self, data_dir: Path, *options: str, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(data_dir, *options, settings={**SMALL, **PATIENT, **(settings or {})})

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.log_text())  # pytest shows it with the failure
        super().__exit__(kind, error, trace)

    def start(self) -> None:
        try:
            super().start()
        except BaseException:
            print(self.log_text())
            raise

    def client(self) -> OpenAI:
        """OpenAI's own client of it; close it. It retries nothing, so that a test sees every
        failure.
        """
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def redis(self) -> Redis:
        """A client of its Redis; close it."""
        run = self.run
        return Redis.from_url(run.redis_url, **run.redis_access.options(run.redis_url))


def adapter_options(adapters: Mapping[str, Path]) -> list[str]:
    """Of `up`: adapters by name, each from its folder."""
    return [word for name, folder in adapters.items() for word in ("--adapter", f"{name}={folder}")]
