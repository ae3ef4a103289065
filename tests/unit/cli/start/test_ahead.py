"""What `up` begins before it knows anything: nothing of it stays if nobody had a use for it."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from cli.start.ahead import Ahead, begun
from cli.start.options import DeploymentOptions


class Refused(Exception):
    """What keeps a deployment from starting."""


@pytest.mark.parametrize("is_detached", [False, True])
def test_nothing_of_it_is_left_where_the_start_is_refused(is_detached: bool) -> None:
    with suppress(Refused), begun(is_detached=is_detached, has_worker=True) as made:
        raise Refused
    process = made.supervisor.process if made.supervisor else made.worker
    assert process is not None and process.returncode == -signal.SIGKILL
    if made.supervisor is not None:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(made.supervisor.reports)


def test_a_deployment_without_real_workers_begins_none() -> None:
    with begun(is_detached=False, has_worker=False) as made:
        assert made == Ahead()


def test_a_supervisor_without_options_ends() -> None:
    with begun(is_detached=True, has_worker=False) as made:
        assert made.supervisor is not None
        made.supervisor.send(b"")
        assert made.supervisor.process.wait() == 1


def test_options_arrive_as_they_were(tmp_path: Path) -> None:
    options = DeploymentOptions(
        data_dir=tmp_path, port=1, models=("demo",), allow_hosts=("a", "b"), dtype="bfloat16"
    )  # fmt: skip
    assert DeploymentOptions.parse(options.dump()) == options
