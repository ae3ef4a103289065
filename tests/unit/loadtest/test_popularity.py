"""Who is asked for: shares of adapters by popularity."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from loadtest.popularity import shares_of
from shared.errors import InvalidRequest

NOWHERE = Path("/nowhere/trace.csv.gz")


def test_shares_are_of_the_wanted_popularity_in_an_order_of_their_own() -> None:
    zipf = shares_of("zipf:1", 50, NOWHERE, seed=1)
    wanted = 1 / np.arange(1, 51)
    assert sorted(zipf, reverse=True) == pytest.approx(list(wanted / wanted.sum()))
    assert list(zipf) != sorted(zipf, reverse=True), "the most popular ones would have one rank"
    assert list(zipf) == list(shares_of("zipf:1", 50, NOWHERE, seed=1))
    assert list(zipf) != list(shares_of("zipf:1", 50, NOWHERE, seed=2))
    assert shares_of("uniform", 4, NOWHERE, seed=1).tolist() == [0.25] * 4


def test_adapters_are_asked_for_as_functions_were_called(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv.gz"
    trace.write_bytes(gzip.compress(b"fn,m1,m2\na,1,2\nb,0,6\nc,1,0\n"))
    shares = shares_of("maf", 3, trace, seed=1)
    assert sorted(shares) == pytest.approx([0.1, 0.3, 0.6])
    drawn = {tuple(np.round(shares_of("maf", 1, trace, seed), 3)) for seed in range(3)}
    assert drawn == {(1.0,)}
    with pytest.raises(InvalidRequest, match=r"the trace has 3 functions.*--adapters 4"):
        shares_of("maf", 4, trace, seed=1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("maf", r"maf needs the Azure Functions trace: /nowhere/trace.csv.gz cannot be read"),
        ("zipf", "--popularity zipf: use uniform, zipf:S"),
        ("zipf:x", "--popularity zipf:x: use uniform, zipf:S"),
    ],
)
def test_a_popularity_that_cannot_be_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        shares_of(text, 3, NOWHERE, seed=1)
