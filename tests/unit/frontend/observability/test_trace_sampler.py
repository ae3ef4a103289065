"""Which requests are traced, and what is told of them."""

from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core.observability.trace_sampler import TraceSampler
from services.frontend.observability.tracing import RequestTracer
from shared.runtime.clock import ManualClock
from shared.tracing import NO_SPAN, TraceContext, Tracer
from shared.tracing.spans import Span

SECOND = 1_000_000_000
WANTED, UNWANTED = TraceContext(1, 2), TraceContext(1, 2, is_sampled=False)


def test_a_request_follows_its_sender_and_others_draw() -> None:
    sampler = TraceSampler(0.25, 1e6)
    assert sampler.takes(WANTED, 0.99, 0) and not sampler.takes(UNWANTED, 0.0, 0)
    assert sampler.takes(None, 0.24, 0) and not sampler.takes(None, 0.25, 0)
    assert not TraceSampler(0.0, 1e6).takes(None, 0.0, 0)
    assert not TraceSampler(1.0, 0.0).takes(WANTED, 0.0, 0)


@given(
    st.floats(0.05, 500),
    st.lists(st.integers(0, SECOND // 2), min_size=1, max_size=300),
)
def test_there_are_never_more_than_so_many_a_second(per_s: float, gaps: list[int]) -> None:
    sampler, now_ns = TraceSampler(1.0, per_s), 0
    taken: list[int] = []
    for gap in gaps:
        now_ns += gap
        if sampler.takes(WANTED, 0.0, now_ns):
            taken.append(now_ns)
    assert taken, "the first is taken"
    for index, since_ns in enumerate(taken):
        num = sum(1 for at_ns in taken[index:] if at_ns <= since_ns + SECOND)
        assert num <= 2 * per_s + 2


@given(st.floats(0.05, 100))
def test_those_that_keep_the_pace_are_all_taken(per_s: float) -> None:
    sampler = TraceSampler(1.0, per_s)
    gap_ns = int(SECOND / per_s) + 1
    assert all(sampler.takes(WANTED, 0.0, number * gap_ns) for number in range(100))


class Told(Span):
    __slots__ = ("notes", "why")
    trace = str(WANTED)

    def __init__(self) -> None:
        self.notes: dict[str, object] = {}
        self.why = ""

    def note(self, attributes: object) -> None:
        assert isinstance(attributes, dict)
        self.notes |= attributes

    def fail(self, why: str) -> None:
        self.why = why

    def end(self, ended_ns: int) -> None:
        self.notes["ended"] = ended_ns


class Telling(Tracer):
    def __init__(self) -> None:
        self.span = Told()

    def begin_request(self, name: str, trace: str, began_ns: int) -> Span:
        return self.span


def test_a_request_ends_with_what_the_access_log_says() -> None:
    tracer, clock = Telling(), ManualClock(1)
    requests = RequestTracer(tracer, clock, TraceSampler(1.0, 10.0), lambda: 0.5)
    line: dict[str, object] = {"path": "/v1/x"}
    try:
        with requests.request("POST /v1/x", "", line) as span:
            assert span is tracer.span
            line |= {"model": "demo", "status": 400, "error": "invalid", "duration_ms": 3}
            raise KeyError("a bug")
    except KeyError:
        pass
    assert tracer.span.why == "invalid"
    assert tracer.span.notes == {
        "url.path": "/v1/x",
        "gen_ai.request.model": "demo",
        "http.response.status_code": 400,
        "ended": 1,
    }


def test_where_nothing_is_recorded_nothing_is_drawn() -> None:
    requests = RequestTracer(Tracer(), ManualClock(1), TraceSampler(0.0, 10.0), lambda: 0.5)
    with requests.request("POST /v1/x", str(UNWANTED), {}) as span:
        assert span is NO_SPAN
