"""What makes a one-shot model's inputs changes with the model, and goes when nobody needs it."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from services.frontend.core.models.fleet import Fleet
from services.frontend.models import files as subject
from services.frontend.models.files import LocalModelFiles, ModelFiles
from services.frontend.models.registry import Models
from shared.errors import NoCapacity, NotFound
from shared.ids import HostId, ModelId, WorkerId
from shared.runtime.clock import ManualClock
from shared.wire.messages import ModelCard, OneshotCard, OneshotVariant, WorkerReport

SECOND = 1_000_000_000
IMAGES = OneshotCard(
    model_id=ModelId("m"), task="classify", modality="image", source="/m", fingerprint="old",
    slo_ms=50, variants=[OneshotVariant(variant=0, batch_ns=[5])], num_values=4,
)  # fmt: skip
TEXTS = replace(IMAGES, modality="text")
REPORT = WorkerReport(
    worker_id=WorkerId("w"), incarnation="a", seq=1, host_id=HostId("h"), state="ready"
)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources, as they are read; what is read the nth time has the height n."""
    sources: list[str] = []

    def load(source: str) -> SimpleNamespace:
        sources.append(source)
        return SimpleNamespace(height=len(sources))

    monkeypatch.setattr(subject, "load_tokenizer", load)
    monkeypatch.setattr(subject, "load_image_processor", load)
    return sources


async def no_names(_: object) -> frozenset[str]:
    return frozenset()


def local_files() -> ModelFiles:
    return LocalModelFiles(ThreadPoolExecutor(1))


class House:
    """Models that are told of one worker's cards, and load before the next report."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.models = Models(self.clock, self._spawn, local_files(), (), no_names)
        self._seq = 0

    def report(self, *cards: OneshotCard, llms: tuple[ModelCard, ...] = ()) -> None:
        self._seq += 1
        self.models.on_report(replace(REPORT, seq=self._seq, oneshot=[*cards], models=[*llms]))

    def height(self) -> int:
        processor: Any = self.models.oneshot("m", "classify").processor
        return int(processor.height)

    @staticmethod
    def _spawn(work: Coroutine[Any, Any, None], _: str) -> None:
        asyncio.run(work)


@pytest.mark.parametrize("card", [IMAGES, TEXTS])
def test_a_model_replaced_at_its_path_is_read_anew(card: OneshotCard, loaded: list[str]) -> None:
    house = House()
    house.report(card)
    house.report(card)
    assert loaded == ["/m"] and house.height() == 1
    house.report(replace(card, fingerprint="new"))
    assert loaded == ["/m", "/m"] and house.height() == 2


@pytest.mark.parametrize("card", [IMAGES, TEXTS])
def test_what_was_replaced_is_dropped(card: OneshotCard, loaded: list[str]) -> None:
    house = House()
    for at in range(5):
        house.report(replace(card, fingerprint=str(at)))
        house.models.on_tick()
    assert len(loaded) == 5 and house.models.num_loaded == 1
    house.clock.advance(60 * SECOND)
    house.models.on_tick()
    house.report(replace(card, fingerprint="4"))
    assert len(loaded) == 5, "a model that is away for a while is not read again"
    house.report(replace(card, fingerprint="0"))
    assert house.height() == 6, "one that was dropped is"


def test_a_model_for_text_keeps_its_tokenizer(loaded: list[str]) -> None:
    card = ModelCard(
        model_id=ModelId("t"), source="/t", fingerprint="f", max_model_len=9,
    )  # fmt: skip
    house = House()
    for fingerprint in ("f", "g"):
        house.report(TEXTS, llms=(replace(card, fingerprint=fingerprint),))
        house.models.on_tick()
    assert sorted(loaded) == ["/m", "/t"]
    assert house.models.get("t").card.fingerprint == "g"


def test_files_of_several_models_are_read_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """transformers' imports fail when two threads make them at once."""
    alone = threading.Lock()
    met: list[str] = []

    def load(source: str) -> SimpleNamespace:
        if not alone.acquire(blocking=False):
            met.append(source)
            return SimpleNamespace()
        threading.Event().wait(0.05)  # long enough for another to come in, were it let
        alone.release()
        return SimpleNamespace()

    monkeypatch.setattr(subject, "load_tokenizer", load)
    monkeypatch.setattr(subject, "load_image_processor", load)

    async def scenario() -> None:
        tasks: list[asyncio.Task[None]] = []
        models = Models(
            ManualClock(),
            lambda work, _: tasks.append(asyncio.create_task(work)),
            local_files(),
            (),
            no_names,
        )
        cards = [
            replace(card, model_id=ModelId(f"m{at}"), source=f"/m{at}")
            for at, card in enumerate((TEXTS, IMAGES, TEXTS, IMAGES))
        ]
        models.on_report(replace(REPORT, oneshot=cards))
        assert models.names() == []
        await asyncio.gather(*tasks)
        assert sorted(models.names()) == ["m0", "m1", "m2", "m3"]

    asyncio.run(scenario())
    assert met == []


def test_files_in_use_anywhere_are_kept() -> None:
    fleet = Fleet()
    newer = replace(TEXTS, fingerprint="new")
    fleet.on_report(replace(REPORT, oneshot=[TEXTS]), 0)
    fleet.on_report(replace(REPORT, worker_id=WorkerId("v"), oneshot=[newer]), SECOND)
    fleet.forget_dead(SECOND)
    assert {files.fingerprint for files in fleet.files()} == {"old", "new"}
    fleet.on_report(replace(REPORT, worker_id=WorkerId("v"), seq=2, oneshot=[newer]), 5 * SECOND)
    fleet.forget_dead(5 * SECOND)
    assert {files.fingerprint for files in fleet.files()} == {"new"}


def test_a_deployed_model_without_workers_is_away_and_not_unknown() -> None:
    clock = ManualClock()
    names = ["gpt-4", "gpt-5=llama", "gpt-6=other"]
    models = Models(clock, lambda *_: None, local_files(), names, no_names, ["llama", "minilm"])
    clock.advance(3600 * 10**9)
    for name in ("llama", "minilm", "gpt-4", "gpt-5"):
        with pytest.raises(NoCapacity):
            models.get(name)
        with pytest.raises(NoCapacity):
            models.oneshot(name, "embed")
    for ask in (models.get, lambda name: models.oneshot(name, "embed")):
        for name in ("other", "gpt-6"):
            with pytest.raises(NotFound) as unknown:
                ask(name)
            assert unknown.value.code == "model_not_found"
    assert models.names() == [], "what cannot be asked now is not listed"
    assert models.knows("llama") and not models.knows("other")
    models.check_exists("llama")
    with pytest.raises(NotFound):
        models.check_exists("other")


def test_a_model_that_a_worker_ever_named_is_away_and_not_unknown(loaded: list[str]) -> None:
    house = House()
    card = ModelCard(model_id=ModelId("t"), source="/t", fingerprint="f", max_model_len=9)
    models, clock = house.models, house.clock
    clock.advance(3600 * SECOND)
    with pytest.raises(NoCapacity, match="no worker has reported yet"):
        models.get("t")
    models.on_report(replace(REPORT, seq=1, oneshot=[], state="loading"))
    with pytest.raises(NoCapacity, match=f"still loading: worker {REPORT.worker_id}"):
        models.get("t")
    models.on_report(replace(REPORT, seq=2, oneshot=[TEXTS], models=[card]))
    assert models.get("t").card == card
    with pytest.raises(NotFound):
        models.get("other")
    clock.advance(24 * 3600 * SECOND)
    models.on_tick()
    assert models.num_loaded == 0
    for ask in (models.get, models.served, lambda name: models.oneshot(name, "embed")):
        for name in ("t", "m"):
            with pytest.raises(NoCapacity, match="its workers are away"):
                ask(name)
        with pytest.raises(NotFound):
            ask("other")
