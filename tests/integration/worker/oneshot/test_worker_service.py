"""A worker with one-shot models on a real bus, between a stub frontend and a stub scheduler."""

import asyncio
import base64
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

from services.worker.config import WorkerConfig
from services.worker.oneshot.emulated import EmulatedOneshot
from services.worker.oneshot.model import Values
from services.worker.service import main
from shared.ids import FrontendId, JobId
from shared.wire.messages import JobInput, JobRef, pack_ints
from tests.conftest import Server
from tests.integration.harness import eventually, running
from tests.integration.worker.oneshot.peers import house, unpack
from tests.unit.worker.oneshot.models import VOCAB, make_classifier, make_image_classifier

INSTANT = "linear:instant:0.01:0.1:50"
SLOW = "linear:slow:1:60000:100000"
RNG = np.random.default_rng(7)


def config(server: Server, tmp_path: Path, **values: Any) -> WorkerConfig:
    return WorkerConfig(
        **{
            "nats_url": server.url,
            "data_dir": tmp_path,
            "host_id": "h",
            "device": "cpu",
            "num_threads": 1,
            "oneshot_profile_s": 0.1,
            "oneshot_batch_max": 8,
            "drain_ms": 2000,
            **values,
        }
    )


def text(name: str, tokens: Sequence[int]) -> JobInput:
    return JobInput(job_id=JobId(name), tokens=pack_ints(tokens))


def test_emulated_batches_with_partial_answers(nats_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = config(nats_server, tmp_path, emulate=f"{INSTANT},zoo-a100:BERT")
        async with house(nats_server.url, 2) as it, running(main, settings, "worker"):
            report = await it.scheduler.ready_report()
            assert [card.model_id for card in report.oneshot] == ["instant", "BERT"]
            assert report.models == []
            first, second = it.frontends
            first.num_per_reply = 2
            jobs = [first.add(text(f"a{n}", [n])) for n in range(5)]
            jobs += [second.add(text(f"b{n}", [n])) for n in range(2)]
            jobs.append(JobRef(job_id=JobId("hung-up"), frontend_id=second.frontend_id))
            await it.scheduler.dispatch(report, "batch", jobs)
            done = await it.scheduler.done_of("batch")
            assert (done.size, done.is_refused, done.worker_id) == (7, False, report.worker_id)
            assert done.run_ns >= 0.17e6
            await eventually(lambda: bool(first.messages and second.messages))
            assert [len(pull.job_ids) for pull in first.pulls] == [5, 3, 1]
            assert [len(m.results) for m in (*first.messages, *second.messages)] == [5, 2]
            for n in range(2):  # the same input, the same values, whoever asks
                one, other = first.results[f"a{n}"], second.results[f"b{n}"]
                np.testing.assert_array_equal(unpack(one), unpack(other))

    asyncio.run(scenario())


def test_a_silent_frontend_loses_its_jobs_only(nats_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = config(nats_server, tmp_path, emulate=INSTANT)
        async with house(nats_server.url) as it, running(main, settings, "worker"):
            report = await it.scheduler.ready_report()
            [frontend] = it.frontends
            lost = JobRef(job_id=JobId("lost"), frontend_id=FrontendId("nobody"))
            odd = JobRef(job_id=JobId("odd"), frontend_id=FrontendId("no such.id"))
            await it.scheduler.dispatch(
                report, "batch", [lost, frontend.add(text("kept", [1])), odd]
            )
            assert (await it.scheduler.done_of("batch")).size == 1
            await eventually(lambda: "kept" in frontend.results)
            assert unpack(frontend.results["kept"]).shape == (8,)

    asyncio.run(scenario())


def test_a_new_leader_is_told_at_once(nats_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = config(nats_server, tmp_path, emulate=SLOW, report_interval_ms=60_000)
        async with house(nats_server.url) as it, running(main, settings, "worker"):
            report = await it.scheduler.ready_report()
            [frontend] = it.frontends
            await it.scheduler.dispatch(report, "old", [frontend.add(text("j", [1]))])
            await eventually(lambda: len(frontend.pulls) == 1)
            num_reports = len(it.scheduler.reports)
            await it.scheduler.lead(7)
            await eventually(lambda: len(it.scheduler.reports) > num_reports)
            latest = it.scheduler.reports[-1]
            assert [seen.fence for seen in latest.fences] == [7]
            [ref] = latest.batches
            assert (ref.batch_id, ref.fence, [j.job_id for j in ref.jobs]) == ("old", 1, ["j"])
            assert 50e9 < ref.remaining_ns <= 60.001e9

            it.scheduler.fence = 6  # the deposed leader has not noticed
            await it.scheduler.dispatch(report, "late", [frontend.add(text("k", [1]))])
            assert (await it.scheduler.done_of("late")).is_refused

    asyncio.run(scenario())


def test_a_twin_does_not_run_twice(nats_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = config(nats_server, tmp_path, emulate=INSTANT)
        async with house(nats_server.url) as it, running(main, settings, "worker"):
            report = await it.scheduler.ready_report()
            [frontend] = it.frontends
            ref = frontend.add(text("j", [1]))
            for _ in range(3):
                await it.scheduler.dispatch(report, "batch", [ref])
            await it.scheduler.done_of("batch")
            await it.scheduler.dispatch(report, "batch", [ref])
            await eventually(lambda: len(it.scheduler.done) >= 2)
            assert len(set(it.scheduler.done)) == 1
            assert len(frontend.messages) == len(frontend.pulls) == 1

    asyncio.run(scenario())


def test_a_failing_batch_is_not_the_end(
    nats_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = EmulatedOneshot.run

    def fail_on_two(
        self: EmulatedOneshot, inputs: Sequence[bytes], variant: int, stop: threading.Event
    ) -> Values:
        if len(inputs) == 2:
            raise ValueError("two are too many")
        return run(self, inputs, variant, stop)

    monkeypatch.setattr(EmulatedOneshot, "run", fail_on_two)

    async def scenario() -> None:
        settings = config(nats_server, tmp_path, emulate=INSTANT)
        async with house(nats_server.url) as it, running(main, settings, "worker"):
            report = await it.scheduler.ready_report()
            [frontend] = it.frontends
            jobs = [frontend.add(text(f"j{n}", [n])) for n in range(3)]
            await it.scheduler.dispatch(report, "bad", jobs[:2])
            await it.scheduler.dispatch(report, "good", jobs[2:])
            assert (await it.scheduler.done_of("good")).size == 1
            await eventually(lambda: len(frontend.results) == 3)
            codes = [frontend.results[f"j{n}"].code for n in range(3)]
            assert codes == ["model_error", "model_error", ""]
            assert frontend.results["j0"].message == "ValueError: two are too many"

    asyncio.run(scenario())


def test_real_models_beside_each_other(nats_server: Server, tmp_path: Path) -> None:
    texts = make_classifier(tmp_path / "texts")
    images = make_image_classifier(tmp_path / "images")
    tokens = [RNG.integers(2, VOCAB, length).tolist() for length in (3, 20, 11)]
    pixels = RNG.integers(0, 256, (3, 16, 24, 3), np.uint8)
    with torch.no_grad():
        text_model = AutoModelForSequenceClassification.from_pretrained(texts)
        want_texts = [text_model(torch.tensor([one])).logits[0].softmax(-1) for one in tokens]
        image_model = AutoModelForImageClassification.from_pretrained(images)
        mean, std = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.25, 0.3])
        scaled = torch.tensor((pixels / 255 - mean) / std, dtype=torch.float32)
        want_images = image_model(scaled.permute(0, 3, 1, 2)).logits.softmax(-1)

    async def scenario() -> None:
        settings = config(nats_server, tmp_path, models=[str(texts), str(images)])
        async with house(nats_server.url) as it, running(main, settings, "worker"):
            report = await it.scheduler.ready_report()
            assert [(c.model_id, c.modality) for c in report.oneshot] == [
                ("texts", "text"),
                ("images", "image"),
            ]
            assert [v.variant for v in report.oneshot[0].variants] == [32, 40]
            [frontend] = it.frontends
            text_jobs = [frontend.add(text(f"t{n}", one)) for n, one in enumerate(tokens)]
            image_jobs = [
                frontend.add(
                    JobInput(
                        job_id=JobId(f"i{n}"),
                        pixels=base64.b64encode(one.tobytes()).decode(),
                        height=16,
                        width=24,
                    )
                )
                for n, one in enumerate(pixels)
            ]
            bad = frontend.add(text("bad", [VOCAB + 1]))
            await it.scheduler.dispatch(report, "t", [*text_jobs, bad], model="texts", variant=32)
            await it.scheduler.dispatch(report, "i", image_jobs, model="images")
            assert (await it.scheduler.done_of("t")).size == 3
            assert (await it.scheduler.done_of("i")).size == 3
            await eventually(lambda: len(frontend.results) == 7)
            assert frontend.results["bad"].code == "invalid_input"
            for n in range(3):
                got = unpack(frontend.results[f"t{n}"])
                np.testing.assert_allclose(got, want_texts[n].numpy(), atol=5e-6)
                got = unpack(frontend.results[f"i{n}"])
                np.testing.assert_allclose(got, want_images[n].numpy(), atol=5e-6)

    asyncio.run(scenario())


def test_generative_and_one_shot_models_on_one_worker(nats_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = config(nats_server, tmp_path, emulate=f"zero,{INSTANT}", write_behind=False)
        async with house(nats_server.url) as it, running(main, settings, "worker"):
            report = await it.scheduler.ready_report()
            assert [card.model_id for card in report.models] == ["zero"]
            [frontend] = it.frontends
            await it.scheduler.dispatch(report, "batch", [frontend.add(text("j", [1]))])
            assert (await it.scheduler.done_of("batch")).size == 1

    asyncio.run(scenario())
