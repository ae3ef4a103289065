"""What `/openapi.json` says of requests and answers, held against what is done, by schemathesis."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster import Cluster

ST = shutil.which("st")
CONFIG = Path(__file__).with_name("schemathesis.toml")
# The schema does not know a model's limits; a deleted advisory stays readable for a while.
NOT_OURS = "positive_data_acceptance,use_after_free"


@pytest.mark.slow
@pytest.mark.skipif(ST is None, reason="schemathesis is not installed")
def test_nothing_is_found(tmp_path: Path) -> None:
    assert ST is not None
    with Cluster(tmp_path / "data", "--emulate", "zero") as cluster:
        command = [ST, "--config-file", str(CONFIG), "run", f"{cluster.url}/openapi.json"]
        found = subprocess.run(
            [*command, "-c", "all", "--exclude-checks", NOT_OURS, "--request-timeout", "60"],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
    assert found.returncode == 0, found.stdout[-20_000:] + found.stderr
