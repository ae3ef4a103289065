"""``bench goodput``: its keys, and what it says to wrong flags."""

from pathlib import Path

import orjson
import pytest

from loadtest.bench import figures, goodput
from shared.errors import InvalidRequest, SymphonyError

RESNET = ["--alpha-ms", "1.053", "--beta-ms", "5.072", "--slo-ms", "25", "--gpus", "2"]
SHORT = ["--seconds", "2", "--cold-seconds", "0.5", "--tolerance", "0.05"]


def test_goodput_of_one_model() -> None:
    found = goodput.run([*RESNET, *SHORT])
    keys = ("goodput_rps", "bad_rate", "batch_p50", "gpu_busy", "staggered_bound_rps")
    assert list(found)[:5] == list(keys)
    assert 0.5 < found["goodput_rps"] / found["staggered_bound_rps"] < 1.2
    assert found["worst_bad_rate"] <= 0.01
    assert 0 < found["gpu_busy"] <= 1
    again = goodput.run([*RESNET, *SHORT])
    assert {key: again[key] for key in keys} == {key: found[key] for key in keys}


def test_one_run_at_a_load() -> None:
    light = goodput.run([*RESNET, *SHORT, "--rps", "300"])
    assert light["offered_rps"] == 300 and light["bad_rate"] == 0
    heavy = goodput.run([*RESNET, *SHORT, "--rps", "3000"])
    assert heavy["bad_rate"] > 0.4
    lost = goodput.run([*RESNET, *SHORT, "--rps", "300", "--kill-gpu", "1"])
    assert lost["dropped"].get("gpu_lost", 0) > 0
    late = goodput.run([*RESNET, *SHORT, "--rps", "300", "--lie", "3", "--no-learning"])
    assert late["num_late"] > 0


def test_trace_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    goodput.run([*RESNET, *SHORT, "--rps", "2500", "--trace", str(path)])
    events = orjson.loads(path.read_bytes())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in slices} == {0, 1}
    assert all(event["dur"] > 0 and event["name"].startswith("model x") for event in slices)
    assert any(event["ph"] == "i" and event["name"].startswith("crowded") for event in events)
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"GPUs", "GPU 1", "model"} <= names


def test_recorded_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("kind,timestamp\n" + "\n".join(f"x,{n * 0.01}" for n in range(500)))
    found = goodput.run([*RESNET, *SHORT, "--rps", "400", "--arrivals", str(path)])
    assert found["bad_rate"] == 0  # evenly spaced
    path.write_text("timestamp\n1.0\nnan\n2.0\n")
    with pytest.raises(InvalidRequest, match="no finite number"):
        goodput.run([*RESNET, *SHORT, "--rps", "400", "--arrivals", str(path)])
    path.write_text("timestamp\nsoon\n")
    with pytest.raises(InvalidRequest, match="cannot read the arrivals"):
        goodput.run([*RESNET, *SHORT, "--rps", "400", "--arrivals", str(path)])


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([*RESNET, "--alpha-ms", "fast"], "--alpha-ms"),
        ([*RESNET, "--slo-ms", "-3"], "--slo-ms"),
        ([*RESNET, "--gpus", "0"], "--gpus"),
        ([*RESNET, "--gamma", "0"], "--gamma"),
        ([*RESNET, "--slo-spread", "1"], "--slo-spread"),
        (["--zoo", "h100", "--gpus", "2"], "--zoo"),
        (["--zoo", "a100", "--subset", "best", "--gpus", "2"], "--subset"),
        (RESNET[:6], "--gpus"),
    ],
)
def test_wrong_values_end_with_their_name(
    flags: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        goodput.run(flags)
    assert names in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([*RESNET, "--slo-ms", "6"], "--slo-ms 6: a single job takes 6.125 ms"),
        ([*RESNET, "--zoo", "a100"], "--zoo has its own models"),
        ([*RESNET, "--subset", "weak"], "--subset weak"),
        (RESNET[2:], "--alpha-ms"),
        ([*RESNET, "--popularity", "zipf"], "--popularity 'zipf'"),
        ([*RESNET, "--jitter", "lognormal"], "--jitter 'lognormal'"),
        ([*RESNET, "--policy", "magic"], "magic"),
        ([*RESNET, "--seconds", "1"], "--seconds 1"),
        ([*RESNET, "--kill-gpu", "50"], "--kill-gpu 50"),
    ],
)
def test_flags_that_do_not_go_together(flags: list[str], names: str) -> None:
    with pytest.raises(SymphonyError, match=names):
        goodput.run(flags)


def test_figures_that_do_not_exist() -> None:
    with pytest.raises(InvalidRequest, match="no set of figures 'all'"):
        figures.run(["all"])
    with pytest.raises(InvalidRequest, match="--only 99"):
        figures.run(["deferred", "--only", "99"])
