"""`bench fuzz` in small: the cluster stands, and the commands that say so work. What takes how long
is for the long runs. Each starts a cluster of its own, so all are for `pytest -m slow`; odd bodies
are sent to a real model with every test (`tests/e2e/api/test_odd_bodies.py`).
"""

import json
from typing import Any

import pytest

from loadtest.deployment import symphony

PATIENT = ["--gap-max-s", "60", "--ping-max-s", "60"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "counts"),
    [
        (
            ["--poison", "--rounds", "2", "--streams", "8", "--stream-tokens", "40", *PATIENT,
             "--kinds", "tiny-divisors,bias-spellings,template,deep-nesting,all-limits,wrong-utf8"],
            {"poison": 12, "replies_undisturbed": 16, "replies_failed_poisoned": 0},
        ),
        (["--http", "60"], {"requests": 60}),
        (["--disk", "1"], {"trials": 1, "starts": 2, "turns_with_wrong_tokens": 0}),
        (["--tenants", "--attempts", "18"], {"attempts": 18, "successes": 0}),
    ],
    ids=["poison", "http", "disk", "tenants"],
)  # fmt: skip
def test_nothing_breaks(mode: list[str], counts: dict[str, int]) -> None:
    done = symphony("bench", "fuzz", "--json", "--seed", "1", *mode, timeout_s=240)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found["violations"]
    assert found["counts"].items() >= counts.items()
    assert found["repeat"].startswith("./symphony bench fuzz --seed 1 ")
