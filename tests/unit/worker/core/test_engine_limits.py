from services.worker.core.engine_limits import Estimates
from shared.ids import HostId


def test_speeds_follow_what_is_measured() -> None:
    speeds = Estimates()
    speeds.on_prefill(100, 1_000_000_000)
    assert speeds.prefill_tokens_per_s == 100
    speeds.on_prefill(200, 1_000_000_000)
    assert speeds.prefill_tokens_per_s == 120
    before = speeds.load_bytes_per_s
    speeds.on_load(10**12, 1_000_000_000)
    assert speeds.load_bytes_per_s > before


def test_the_slowest_way_is_what_the_kvstore_measures_where_that_is_slower() -> None:
    speeds = Estimates(load_bytes_per_s=1000)
    speeds.on_source(100.0)
    assert speeds.slowest_ns(50, {}) == 500_000_000
    speeds.on_source(0.0)  # it does not tell
    assert speeds.slowest_ns(50, {}) == 500_000_000
    speeds.on_source(2000.0)
    assert speeds.slowest_ns(50, {}) == 50_000_000


def test_what_another_host_has_comes_no_faster_than_from_there() -> None:
    own, near, far = HostId("own"), HostId("near"), HostId("far")
    speeds = Estimates(load_bytes_per_s=1000)
    speeds.on_source(500.0, {near: 100.0, far: 10.0})
    speeds.on_source(500.0)  # of a stage, which tells nothing of others
    assert speeds.slowest_ns(50, {near: 9, far: 3}) == 500_000_000
    assert speeds.slowest_ns(50, {near: 3, far: 9}) == 5_000_000_000
    assert speeds.slowest_ns(50, {own: 9, far: 3}) == 100_000_000
    assert speeds.slowest_ns(50, {HostId("unmeasured"): 9}) == 100_000_000


def test_what_tells_nothing_of_speed_is_ignored() -> None:
    speeds = Estimates()
    speeds.on_prefill(63, 1_000_000_000)  # too few tokens
    speeds.on_prefill(100, 0)
    before = speeds.load_bytes_per_s
    speeds.on_load(100, 0)
    assert speeds.prefill_tokens_per_s == 0
    assert speeds.load_bytes_per_s == before
