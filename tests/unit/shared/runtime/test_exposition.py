"""Metrics of many processes as one text."""

import base64
import zlib

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from shared.runtime import exposition
from shared.runtime.exposition import merged, own_metrics, pack_text, samples_of, unpack_text


def metrics_of(number: int) -> str:
    registry = CollectorRegistry()
    Counter("hits", "Of a cache", ["model"], registry=registry).labels('a "b" {c} d\n').inc(number)
    Gauge("live", "Things", registry=registry).set(number)
    Histogram("took_seconds", "It", buckets=[1.0], registry=registry).observe(number)
    if number == 2:
        Gauge("only_here", "Not there", registry=registry).set(1)
    return generate_latest(registry).decode()


def test_every_sample_gets_its_process_and_every_family_is_told_once() -> None:
    labels = [{"service": "worker", "process": f'w"{number}'} for number in (1, 2)]
    whole = merged((labels[at], metrics_of(at + 1)) for at in (0, 1))
    families = list(text_string_to_metric_families(whole))
    names = [family.name for family in families]
    assert len(names) == len(set(names)) and "only_here" in names
    found = {}
    for family in families:
        assert family.documentation and family.type != "unknown"
        for sample in family.samples:
            assert sample.labels["service"] == "worker"
            found[sample.name, sample.labels["process"], sample.labels.get("le")] = sample
    assert found["hits_total", 'w"2', None].value == 2
    assert found["hits_total", 'w"1', None].labels["model"] == 'a "b" {c} d\n'
    assert found["took_seconds_bucket", 'w"1', "1.0"].value == 1
    assert found["took_seconds_bucket", 'w"2', "1.0"].value == 0
    assert len(found) == 2 * (2 + 1 + 5) + 1


def test_lines_end_where_the_format_says() -> None:
    text = 'symphony_a{m="x\x85y\u2028z"} 1.0\n'
    assert merged([({"p": "q"}, text)]) == 'symphony_a{p="q",m="x\x85y\u2028z"} 1.0\n'
    assert samples_of(text, {"a"}) == [("a", {"m": "x\x85y\u2028z"}, 1.0)]


def test_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = own_metrics()
    assert unpack_text(pack_text(text)) == text and len(pack_text(text)) < len(text)
    for wrong in ("x", "", base64.b64encode(zlib.compress(b"\xff")).decode(), "é"):
        if wrong:
            with pytest.raises(ValueError, match=r".+"):
                unpack_text(wrong)
    monkeypatch.setattr(exposition, "TEXT_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        unpack_text(pack_text("a" * 101))
    assert unpack_text(pack_text("a" * 100)) == "a" * 100
