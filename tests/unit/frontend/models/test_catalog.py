"""One-shot models by name."""

from dataclasses import replace

from services.frontend.core.models.catalog import Catalog
from shared.ids import ModelId, WorkerId
from shared.wire.messages import OneshotCard, OneshotVariant

CARD = OneshotCard(
    model_id=ModelId("m"),
    task="embed",
    modality="text",
    source="folder",
    fingerprint="f",
    slo_ms=100.0,
    variants=[OneshotVariant(variant=16, batch_ns=[6, 8])],
    num_values=4,
)
ONE, TWO = WorkerId("w1"), WorkerId("w2")


def test_a_model_is_there_while_a_worker_serves_it() -> None:
    catalog = Catalog()
    catalog.put(ONE, [CARD])
    catalog.put(TWO, [CARD])
    catalog.put(ONE, [])
    assert catalog.names() == ["m"] and list(catalog.workers(ModelId("m"))) == [TWO]
    catalog.put(TWO, [])
    assert catalog.names() == []


def test_each_size_has_the_times_of_the_worker_that_is_fastest_at_it() -> None:
    slow = replace(
        CARD,
        variants=[
            OneshotVariant(variant=16, batch_ns=[7, 7]),
            OneshotVariant(variant=32, batch_ns=[9]),
        ],
    )
    catalog = Catalog()
    catalog.put(ONE, [slow])
    catalog.put(TWO, [CARD])
    variants = catalog.card(ModelId("m")).variants
    assert [(v.variant, v.batch_ns) for v in variants] == [(16, [6, 8]), (32, [9])]


def test_a_worker_that_names_a_model_twice_serves_it_once() -> None:
    catalog = Catalog()
    catalog.put(ONE, [CARD, CARD])
    catalog.put(ONE, [])
    assert catalog.names() == []


def test_requests_go_to_the_version_that_most_workers_have() -> None:
    new = replace(CARD, fingerprint="g", labels=["a", "b"], created=2)
    catalog = Catalog()
    catalog.put(ONE, [CARD])
    catalog.put(TWO, [CARD])
    catalog.put(ONE, [new])
    assert catalog.card(ModelId("m")) == new, "one each: the newer"
    catalog.put(WorkerId("w3"), [CARD])
    assert catalog.card(ModelId("m")).fingerprint == "f"
