"""``symphony bench core``, small."""

from loadtest.bench.core import run


def test_every_decision_is_timed() -> None:
    figures = run(["--turns", "2", "--context", "640", "--layers", "2", "--steps", "2"])
    worker = {"stage", "loaded", "leave", "make_room", "expect", "prefetch"}
    assert worker | {"decode_1000", "decode_640"} <= figures.keys()
    assert all(each["pages"] > 0 for name, each in figures.items() if "decode" not in name)
