"""Models loaded and unloaded on order: nothing under a batch, never more than fits."""

from services.worker.oneshot.core import BatchCore
from services.worker.oneshot.effects import (
    BatchLimits,
    Effect,
    LoadModel,
    Pulled,
    Ran,
    RunBatch,
    SendDone,
    UnloadModel,
)
from services.worker.oneshot.holding import RETRY_NS
from shared.ids import BatchId, FrontendId, JobId, ModelId, WorkerId
from shared.wire.messages import (
    BatchStart,
    JobRef,
    OneshotCard,
    OneshotHold,
    OneshotVariant,
)

MS = 1_000_000
FRONTEND = FrontendId("f")


def card(name: str, static_bytes: int = 100, dynamic_bytes: int = 0) -> OneshotCard:
    return OneshotCard(
        model_id=ModelId(name), task="embed", modality="text", source="s", fingerprint=name,
        slo_ms=50.0, variants=[OneshotVariant(variant=0, batch_ns=[MS, 2 * MS])], num_values=1,
        static_bytes=static_bytes, dynamic_bytes=dynamic_bytes,
    )  # fmt: skip


class Host:
    """A core; `loading` and `unloading` wait for `finish`, runs for `end`."""

    def __init__(self, *cards: OneshotCard, bytes_max: int = 200) -> None:
        self.cards = {each.model_id: each for each in cards}
        self.core = BatchCore(WorkerId("w"), cards, BatchLimits(models_bytes_max=bytes_max))
        self.changing: list[LoadModel | UnloadModel] = []
        self.running: list[BatchId] = []
        self.refused: list[str] = []
        self.num_orders = 0
        self.now_ns = 0

    @property
    def loaded(self) -> set[str]:
        return {str(each.model_id) for each in self.core.models.cards() if each.is_loaded}

    def take(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            match effect:
                case LoadModel() | UnloadModel():
                    self.changing.append(effect)
                case RunBatch(batch_id):
                    self.running.append(batch_id)
                case SendDone(done) if done.is_refused:
                    self.refused.append(done.batch_id)
        return effects

    def order(self, *models: str, fence: int = 1, seq: int = 0) -> None:
        self.num_orders += 1
        names = [ModelId(model) for model in models]
        order = OneshotHold(models=names, fence=fence, seq=seq or self.num_orders)
        self.take(self.core.on_hold(order, self.now_ns))

    def finish(self, why: str = "") -> None:
        """The oldest change is over."""
        change = self.changing.pop(0)
        if isinstance(change, UnloadModel):
            self.take(self.core.on_unloaded(change.model_id, self.now_ns))
        else:
            loaded = None if why else self.cards[change.model_id]
            self.take(self.core.on_loaded(change.model_id, loaded, why, self.now_ns))

    def settle(self) -> None:
        while self.changing:
            self.finish()

    def batch(self, name: str, model: str) -> None:
        start = BatchStart(
            batch_id=BatchId(name), fence=1, model_id=ModelId(model), fingerprint=model, variant=0,
            jobs=[JobRef(job_id=JobId(name), frontend_id=FRONTEND)],
        )  # fmt: skip
        self.take(self.core.on_batch_start(start, self.now_ns))
        inputs = [Pulled(job_id=JobId(name), value=name)]
        self.take(self.core.on_inputs(BatchId(name), FRONTEND, inputs, self.now_ns))

    def end(self) -> None:
        """The running batch is over."""
        ran = Ran(started_at_ns=0, run_ns=MS, values=["v"])
        self.take(self.core.on_ran(self.running.pop(0), ran, self.now_ns))


def three(bytes_max: int = 200) -> Host:
    host = Host(card("a"), card("b"), card("c"), bytes_max=bytes_max)
    host.order("a", "b")
    host.settle()
    return host


def test_it_begins_empty_and_loads_one_at_a_time() -> None:
    host = Host(card("a"), card("b"))
    assert host.loaded == set()
    host.order("b", "a")
    assert host.changing == [LoadModel(ModelId("b"))]
    host.finish()
    assert host.loaded == {"b"} and host.changing == [LoadModel(ModelId("a"))]
    host.finish()
    assert host.loaded == {"a", "b"}


def test_without_a_bound_everything_is_loaded_and_orders_are_void() -> None:
    host = Host(card("a"), card("b"), bytes_max=0)
    host.order("a")
    assert host.loaded == {"a", "b"} and not host.changing


def test_a_model_is_unloaded_once_its_batches_have_ended() -> None:
    host = three()
    host.batch("1", "b")
    host.batch("2", "b")
    host.order("a", "c")
    assert host.loaded == {"a"} and not host.changing  # nor is there room for c yet
    host.batch("3", "b")
    assert host.refused == ["3"]
    host.batch("4", "a")  # others are served meanwhile
    host.end()
    assert not host.changing
    host.end()
    assert host.changing == [UnloadModel(ModelId("b"))]
    host.finish()
    assert host.changing == [LoadModel(ModelId("c"))]
    assert host.running == ["4"]
    host.settle()
    assert host.loaded == {"a", "c"}


def test_what_fits_loads_while_others_drain() -> None:
    host = three(bytes_max=300)
    host.batch("1", "b")
    host.order("a", "c")
    host.finish()
    assert host.loaded == {"a", "c"} and host.running == ["1"]
    host.end()
    assert host.changing == [UnloadModel(ModelId("b"))]


def test_a_drained_model_that_is_wanted_again_serves_at_once() -> None:
    host = three()
    host.batch("1", "b")
    host.order("a")
    host.order("a", "b")
    assert host.loaded == {"a", "b"}
    host.end()
    assert not host.changing


def test_a_model_that_is_no_longer_wanted_while_it_loads_is_unloaded_then() -> None:
    host = Host(card("a"), card("b"))
    host.order("a")
    host.order("b")
    host.finish()
    assert host.loaded == set()
    assert host.changing == [UnloadModel(ModelId("a")), LoadModel(ModelId("b"))]


def test_repeated_orders_change_nothing_and_older_ones_are_void() -> None:
    host = three()
    host.order("a", "b", seq=5)
    host.order("a", "b", seq=5)
    host.order("c", seq=4)  # overtaken
    host.order("c", fence=0, seq=9)  # of an earlier leader
    assert host.loaded == {"a", "b"} and not host.changing
    host.order("a", fence=2, seq=1)
    assert host.changing == [UnloadModel(ModelId("b"))]
    assert host.core.fence("all") == 2


def test_an_earlier_leader_is_known_without_an_order_of_a_later_one() -> None:
    host = three()
    host.core.on_fence("all", 7)
    host.order("c", fence=6)
    assert host.loaded == {"a", "b"} and not host.changing


def test_a_load_that_fails_is_reported_and_not_tried_again_soon() -> None:
    host = Host(card("a"), card("b"))
    host.order("a", "b")
    host.finish(why="OSError: no such file")
    host.finish()
    [lack] = host.core.models.lacks(host.now_ns)
    assert (lack.model_id, lack.reason) == ("a", "OSError: no such file")
    host.order("a", "b")
    assert host.loaded == {"b"} and not host.changing
    host.now_ns += RETRY_NS
    host.order("a", "b")
    assert host.changing == [LoadModel(ModelId("a"))]


def test_an_order_for_more_than_fits_is_obeyed_as_far_as_it_can_be() -> None:
    host = Host(card("a"), card("b", dynamic_bytes=50), card("c"), bytes_max=250)
    host.order("a", "b", "c", "unknown")
    host.settle()
    assert host.loaded == {"a", "b"}
    [lack] = host.core.models.lacks(host.now_ns)
    assert lack.model_id == "c" and "100 bytes" in lack.reason and "250" in lack.reason


def test_nothing_is_loaded_while_the_worker_drains() -> None:
    host = three()
    host.batch("1", "b")
    host.core.drain()
    host.order("c")
    host.end()
    assert not host.changing
