"""A frontend on a real bus, with a scheduler and worker for one-shot models that do what a test
tells them.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from openai import AsyncOpenAI
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from cli.base.children import free_port
from services.frontend.config import FrontendConfig
from services.frontend.service import main
from shared.bus import Bus
from shared.ids import FrontendId, HostId, JobId, ModelId, WorkerId
from shared.wire import messages as m
from shared.wire.subjects import (
    INPUT_PULL,
    JOB_RESULTS,
    JOBS_CANCEL,
    JOBS_DROPPED,
    JOBS_SUBMIT,
    LEADER_CHANGED,
    WORKER_REPORT,
)
from tests.conftest import Server
from tests.integration.frontend.deployment import wait_healthy
from tests.integration.harness import InProcessRuntime, connected, eventually_answers, running

REPORT_S = 0.1
DIMENSIONS = 6
LABELS = ["red", "green", "blue"]
CLS, SEP, WORD = 2, 3, 4  # WORD: the token of "w0"
EDGE = 8
FASTEST_MS = 2.0


def make_text_folder(folder: Path) -> Path:
    """A tokenizer of the words ``w0`` to ``w99``, framed as BERT does it."""
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": CLS, "[SEP]": SEP}
    words |= {f"w{at}": WORD + at for at in range(100)}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        unk_token="[UNK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
    return folder


def make_image_folder(folder: Path) -> Path:
    """The configuration of an image processor."""
    folder.mkdir()
    config = {"size": {"shortest_edge": EDGE}, "do_center_crop": True, "resample": 2}
    config["crop_size"] = {"height": EDGE, "width": EDGE}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder


def embedding_of(tokens: list[int]) -> list[float]:
    """What the stub makes of a text: its length, its tokens' sum, and the first of them."""
    return ([len(tokens), sum(tokens), *map(float, tokens)] + [0.0] * DIMENSIONS)[:DIMENSIONS]


@dataclass
class JobDeployment:
    """Everything a test talks to; scheduler and worker in one, which know of any shard.

    Attributes:
        drop: what to say of a job instead of running it.
        is_deaf: hear jobs and do nothing.
        hold: wait for it before results are sent.
        copies: how often each result is sent.
        num_pulls: requests for inputs that were answered.
    """

    url: str
    bus: Bus
    http: httpx.AsyncClient
    openai: AsyncOpenAI
    runtime: InProcessRuntime
    cards: list[m.OneshotCard]
    drop: Callable[[m.JobSubmit], m.JobDropped | None] = lambda _: None
    is_deaf: bool = False
    hold: asyncio.Event | None = None
    copies: int = 1
    broken: str = ""
    submits: list[m.JobsSubmit] = field(default_factory=list)
    cancels: list[JobId] = field(default_factory=list)
    inputs: dict[JobId, m.JobInput] = field(default_factory=dict)
    num_pulls: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        for shard in range(2):
            await self.bus.subscribe(JOBS_SUBMIT, self._on_submit, str(shard))
            await self.bus.subscribe(JOBS_CANCEL, self._on_cancel, str(shard))
        await self.bus.flush()
        self._spawn(self._report())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for error in await asyncio.gather(*self._tasks, return_exceptions=True):
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error

    async def lead(self) -> None:
        """Say that another scheduler leads now."""
        await self.bus.publish(LEADER_CHANGED, m.LeaderChanged(instance="s2", fence=2))

    def jobs(self) -> list[m.JobSubmit]:
        """Every job heard of, repeated ones too."""
        return [job for submit in self.submits for job in submit.jobs]

    async def metric(self, line: str) -> float:
        """A value of ``/metrics``, 0 while it is not there."""
        for text in (await self.http.get("/metrics")).text.splitlines():
            if text.startswith(f"symphony_{line} "):
                return float(text.rpartition(" ")[2])
        return 0.0

    def _spawn(self, work: Any) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    async def _report(self) -> None:
        seq = 0
        while True:
            seq += 1
            report = m.WorkerReport(
                worker_id=WorkerId("w1"), incarnation="i", seq=seq, host_id=HostId("h"),
                state="ready", oneshot=self.cards, interval_ns=int(REPORT_S * 1e9),
            )  # fmt: skip
            await self.bus.publish(WORKER_REPORT, report)
            await asyncio.sleep(REPORT_S)

    def _on_cancel(self, message: m.JobsCancel) -> None:
        self.cancels += message.job_ids

    def _on_submit(self, message: m.JobsSubmit) -> None:
        self.submits.append(message)
        if not self.is_deaf:
            self._spawn(self._run(message.frontend_id, message.jobs))

    async def _run(self, frontend_id: FrontendId, jobs: list[m.JobSubmit]) -> None:
        dropped = [why for job in jobs if (why := self.drop(job)) is not None]
        if dropped:
            await self.bus.publish(JOBS_DROPPED, m.JobsDropped(jobs=dropped), frontend_id)
        gone = {why.job_id for why in dropped}
        left = [job.job_id for job in jobs if job.job_id not in gone]
        models = {job.job_id: job.model_id for job in jobs}
        while left:
            pull = m.InputPull(job_ids=left)
            reply = await self.bus.request(INPUT_PULL, pull, frontend_id)
            self.num_pulls += 1
            left = left[len(reply.inputs) :]
            self.inputs |= {given.job_id: given for given in reply.inputs}
            if self.hold is not None:
                await self.hold.wait()
            results = [self._result(models[i.job_id], i) for i in reply.inputs if not i.gone]
            message = m.JobResults(results=results[::-1])
            for _ in range(self.copies):
                await self.bus.publish(JOB_RESULTS, message, frontend_id)

    def _result(self, model_id: ModelId, given: m.JobInput) -> m.JobResult:
        if self.broken:
            return m.JobResult(job_id=given.job_id, code=self.broken, message="it broke")
        values = np.array(self._values(model_id, given), "<f4")
        return m.JobResult(job_id=given.job_id, values=base64.b64encode(values.tobytes()).decode())

    @staticmethod
    def _values(model_id: ModelId, given: m.JobInput) -> list[float]:
        tokens = m.unpack_ints(given.tokens)
        if model_id == "img":
            flat = np.frombuffer(base64.b64decode(given.pixels), np.uint8)
            means = flat.reshape(given.height, given.width, 3).mean(axis=(0, 1)) / 255
            return [float(mean) for mean in means]
        if model_id == "cls":
            return [0.75 if sum(tokens) % 3 == at else 0.125 for at in range(3)]
        if model_id == "rer":
            parts = m.unpack_ints(given.segments)
            query = {t for t, part in zip(tokens, parts, strict=True) if part == 0}
            document = [t for t, part in zip(tokens, parts, strict=True) if part == 1]
            return [sum(token in query for token in document) / len(document)]
        return embedding_of(tokens)


def cards_of(folder: Path) -> list[m.OneshotCard]:
    """One model of each kind."""
    text = str(make_text_folder(folder / "text"))
    image = str(make_image_folder(folder / "image"))

    def card(name: str, task: m.Task, num_values: int, sizes: list[int]) -> m.OneshotCard:
        times = [int(FASTEST_MS * 1e6), int(FASTEST_MS * 2e6)]
        return m.OneshotCard(
            model_id=ModelId(name), task=task, modality="text" if sizes[0] else "image",
            source=text if sizes[0] else image, fingerprint="f", slo_ms=5000, created=7,
            variants=[m.OneshotVariant(variant=size, batch_ns=times) for size in sizes],
            num_values=num_values, labels=LABELS if task == "classify" else [],
        )  # fmt: skip

    return [
        card("emb", "embed", DIMENSIONS, [8, 32]),
        card("cls", "classify", len(LABELS), [32]),
        card("img", "classify", len(LABELS), [0]),
        card("rer", "rerank", 1, [16, 32]),
    ]


@asynccontextmanager
async def job_deployment(
    nats_server: Server, redis_server: Server, folder: Path, key: str = "none", **settings: Any
) -> AsyncIterator[JobDeployment]:
    """A frontend whose one-shot models are up, over HTTP and through the official client, which
    send `key`.
    """
    port = free_port()
    config = FrontendConfig(
        nats_url=nats_server.url, redis_url=redis_server.url, http_port=port, **settings
    )
    url = f"http://127.0.0.1:{port}"
    cards = cards_of(folder)
    async with (
        running(main, config, "frontend") as runtime,
        connected(nats_server.url) as bus,
        httpx.AsyncClient(
            base_url=url, timeout=20, headers={"Authorization": f"Bearer {key}"}
        ) as http,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as openai,
    ):
        deployment = JobDeployment(url, bus, http, openai, runtime, cards)
        await deployment.start()
        await wait_healthy(http)
        try:
            await eventually_answers(
                lambda: http.get("/v1/models"), lambda a: len(a.json()["data"]) == len(cards)
            )
            yield deployment
        finally:
            await deployment.stop()
