"""Profiles: what is measured in which time, what is filled in, what is kept."""

from collections import Counter
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.load_oneshot import default_slo_ms, make_oneshot
from services.worker.oneshot.profile import (
    NOISE_MAX,
    NOISY_RUNS,
    ProfileCache,
    fill,
    measure,
    ordered,
)
from shared.wire.messages import OneshotVariant
from tests.unit.worker.oneshot.models import make_embedder, make_image_classifier, settings

MS = 1_000_000


class FakeDevice:
    """Takes ``alpha * size + beta`` on a clock of its own; the first run of a size takes longer."""

    def __init__(self, alpha_ns: int, beta_ns: int) -> None:
        self.alpha_ns, self.beta_ns = alpha_ns, beta_ns
        self.now = 0
        self.seen: set[int] = set()
        self.num_runs = 0

    def run(self, size: int) -> None:
        self.num_runs += 1
        self.now += self.alpha_ns * size + self.beta_ns
        if size not in self.seen:
            self.seen.add(size)
            self.now += self.beta_ns

    def now_ns(self) -> int:
        return self.now


def test_with_time_enough_every_size_is_measured_warm() -> None:
    device = FakeDevice(MS, 5 * MS)
    measured = measure(device.run, 16, 60_000 * MS, device.now_ns)
    assert measured == {size: (size + 5) * MS for size in range(1, 17)}


@given(
    alpha_ns=st.integers(1, 50 * MS),
    beta_ns=st.integers(0, 50 * MS),
    batch_max=st.integers(1, 64),
    budget_ns=st.integers(0, 5_000 * MS),
)
def test_a_short_budget_is_kept_and_the_rest_is_on_the_line(
    alpha_ns: int, beta_ns: int, batch_max: int, budget_ns: int
) -> None:
    device = FakeDevice(alpha_ns, beta_ns)
    measured = measure(device.run, batch_max, budget_ns, device.now_ns)
    assert {1, min(2, batch_max)} <= set(measured)
    slack_ns = 4 * (2 * alpha_ns + 2 * beta_ns)  # the two smallest sizes are measured anyway
    dearest_ns = alpha_ns * batch_max + 2 * beta_ns
    assert device.now <= budget_ns + slack_ns + dearest_ns
    filled = fill(measured, batch_max)
    want = [alpha_ns * size + beta_ns for size in range(1, batch_max + 1)]
    if batch_max > 1:
        assert filled == pytest.approx(want, rel=1e-6, abs=2)


def test_sizes_that_tell_most_come_first() -> None:
    device = FakeDevice(10 * MS, 0)
    measured = measure(device.run, 16, 2_500 * MS, device.now_ns)
    assert set(measured) >= {1, 2, 4, 8, 16}
    assert len(measured) < 16


class BusyDevice(FakeDevice):
    """Every other run waits for other work, for the first `num_busy` of each size."""

    def __init__(self, num_busy: int) -> None:
        super().__init__(100 * MS, 0)
        self.num_busy = num_busy
        self.num_of: Counter[int] = Counter()

    def run(self, size: int) -> None:
        super().run(size)
        self.num_of[size] += 1
        if self.num_of[size] <= self.num_busy and self.num_of[size] % 3:
            self.now += 300 * MS * size


def test_what_other_work_has_slowed_is_measured_again() -> None:
    device, noise = BusyDevice(num_busy=5), list[float]()
    assert measure(device.run, 4, 60_000 * MS, device.now_ns, noise.append) == {
        size: size * 100 * MS for size in (1, 2, 3, 4)
    }
    assert max(noise) <= NOISE_MAX
    always, noise = BusyDevice(num_busy=10**6), []
    measure(always.run, 4, 60_000 * MS, always.now_ns, noise.append)
    assert min(noise) > NOISE_MAX and max(always.num_of.values()) == NOISY_RUNS + 1


def test_a_shorter_input_takes_no_longer() -> None:
    profiles = [
        OneshotVariant(variant=8, batch_ns=[9, 2]),
        OneshotVariant(variant=16, batch_ns=[3, 30]),
        OneshotVariant(variant=32, batch_ns=[4, 20]),
    ]
    assert [each.batch_ns for each in ordered(profiles)] == [[3, 2], [3, 20], [4, 20]]


def test_a_profile_of_a_busy_machine_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(make_embedder(tmp_path / "m", ["mean_tokens"]))
    config = settings(
        data_dir=tmp_path, oneshot_batch_max=2, oneshot_variants=[8], oneshot_profile_s=0.01
    )
    for noise_max, num_kept in ((-1.0, 0), (inf, 1)):
        monkeypatch.setattr("services.worker.oneshot.profile.NOISE_MAX", noise_max)
        make_oneshot(config, "cpu", "m", folder, "embed")
        assert len(list((tmp_path / "profiles").glob("*.json"))) == num_kept


def test_times_never_fall() -> None:
    assert fill({1: 30, 2: 20, 4: 60}, 6) == [30, 30, 40, 60, 71, 83]


def test_the_target_leaves_room_for_batches_of_8() -> None:
    def profile(ms: int, sizes: int) -> list[OneshotVariant]:
        return [OneshotVariant(variant=8, batch_ns=[ms * MS * n for n in range(1, sizes + 1)])]

    assert default_slo_ms(profile(1, 16)) == 50.0
    assert default_slo_ms(profile(10, 16)) == 240.0
    assert default_slo_ms(profile(10, 4)) == 120.0


def test_a_kept_profile_is_found_under_its_key_only(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path / "profiles")
    variants = [OneshotVariant(variant=32, batch_ns=[1, 2, 3])]
    cache.put({"a": 1}, variants)
    assert cache.get({"a": 1}) == variants
    assert cache.get({"a": 2}) is None


def test_a_damaged_profile_is_measured_anew(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    cache.put({"a": 1}, [])
    next(tmp_path.glob("*.json")).write_text("{")
    assert cache.get({"a": 1}) is None


def test_a_disk_that_takes_nothing_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ProfileCache(tmp_path / "file").put({"a": 1}, [])


def test_a_model_is_profiled_at_its_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.oneshot.profile.NOISE_MAX", inf)  # of a busy machine
    folder = str(make_embedder(tmp_path / "m", ["mean_tokens"]))
    config = settings(
        data_dir=tmp_path, oneshot_batch_max=4, oneshot_variants=[8, 16, 32], oneshot_profile_s=0.2
    )
    first = make_oneshot(config, "cpu", "m", folder, "embed").card
    assert [v.variant for v in first.variants] == [8, 16, 24]  # its files say 24 at most
    assert all(len(v.batch_ns) == 4 and v.batch_ns == sorted(v.batch_ns) for v in first.variants)
    assert first.slo_ms >= 50.0
    again = make_oneshot(config, "cpu", "m", folder, "embed").card
    assert again.variants == first.variants


def test_an_image_model_has_one_variant(tmp_path: Path) -> None:
    folder = str(make_image_classifier(tmp_path / "m"))
    config = settings(
        data_dir=tmp_path, oneshot_batch_max=3, oneshot_profile_s=0.1, oneshot_slo_ms=7.5
    )
    card = make_oneshot(config, "cpu", "m", folder, "classify").card
    assert [(v.variant, len(v.batch_ns)) for v in card.variants] == [(0, 3)]
    assert card.slo_ms == 7.5
