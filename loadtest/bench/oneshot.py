"""``symphony bench oneshot``: embeddings with a target, through the whole house, on a real model.

The house runs as `symphony up` starts it: frontend, scheduler, one worker with the model. Requests
of one text each come at Poisson arrivals over HTTP, whatever became of earlier ones. What counts is
who answered when: in time, late, or 503, and how soon the 503 came. A miss is a job that was not
refused and whose answer did not come by its deadline. `miss_share` has the frontend's clock, which
sees what the scheduler is responsible for; `client_miss_share` that of the client, who also waits
for sockets and JSON. The load and every service share this machine.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import uvloop

from cli.runfile import running_deployment
from cli.supervisor.children import free_port
from loadtest.fuzz.plain_http import request_bytes
from loadtest.http_load import Answers, send_all
from loadtest.jobs.encoder import NUM_TOKENS_ADDED, WORDS, make_encoder
from loadtest.jobs.processes import cpu_s
from loadtest.simulator.arrivals import renewal
from services.scheduler.core.batching.latency import BatchLatency
from shared.access import NatsAccess
from shared.bus import Bus
from shared.errors import InvalidRequest, PeerUnavailable
from shared.ids import BatchId
from shared.messages import BatchDone, BatchStart, OneshotCard, WorkerReport
from shared.subjects import BATCH_DONE, BATCH_START, WORKER_REPORT

PATH = "/v1/embeddings"
CONNECTIONS_MAX = 256
REPORT_WAIT_S = 10.0
SHARE = 0.7  # of what the profile promises: the load of a run for which none is given
WARM_S = 3.0  # of the same load before; not counted
OUTCOMES = ("done", "late", "unanswered")


@dataclass(frozen=True, slots=True)
class House:
    """A running house, seen from outside.

    Attributes:
        pids: of its processes, by name.
    """

    port: int
    nats_url: str
    nats_access: NatsAccess
    pids: dict[str, int]

    def ended(self) -> list[int]:
        """Jobs that ended with each of the `OUTCOMES`, as the frontend counts."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as response:
            text = response.read().decode()
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
        name = 'symphony_frontend_jobs_total{outcome="%s"}'
        return [int(float(values.get(name % outcome, 0))) for outcome in OUTCOMES]


def run(argv: list[str]) -> dict[str, Any]:
    """Start a house, send the load, and count.

    Raises:
        InvalidRequest: no batch of the model is within the target.
        PeerUnavailable: the house did not come up, or serves no one-shot model.
    """
    args = _parser().parse_args(argv)
    lengths = _lengths(args)
    with tempfile.TemporaryDirectory(prefix="symphony-oneshot-") as name:
        directory = Path(name)
        model = args.model or str(make_encoder(directory / "bert-4x256"))
        port = free_port()
        up = ["up", "--model", model, "--port", str(port), "--data-dir", name, "--detach"]
        threads = {"SYMPHONY_NUM_THREADS": str(args.threads)} if args.threads else {}
        _cli(*up, SYMPHONY_ONESHOT_VARIANTS=args.variants, **threads)
        try:
            state = running_deployment(directory)
            pids = {service.name: service.pid for service in state.services}
            house = House(port, state.nats_url, state.nats_access, pids)
            return uvloop.run(_measure(args, house, lengths))
        finally:
            _cli("down", "--data-dir", name)


async def _measure(
    args: argparse.Namespace, house: House, lengths: Sequence[int]
) -> dict[str, Any]:
    bus = await Bus.connect(house.nats_url, "bench", house.nats_access)
    dones: list[BatchDone] = []
    expected_ns: dict[BatchId, int] = {}

    def on_start(start: BatchStart) -> None:
        expected_ns[start.batch_id] = start.expected_ns

    report = await _first_report(bus)
    card = report.oneshot[0]
    await bus.subscribe(BATCH_START, on_start, report.worker_id)
    await bus.subscribe(BATCH_DONE, dones.append)
    rps = args.rps or SHARE * capacity_rps(card, lengths, args.slo_ms)
    _say(f"{card.model_id}: {rps:.1f} r/s for {args.seconds:g} s, target {args.slo_ms:g} ms")
    await _send(args, house, card, rps, lengths, WARM_S, args.seed + 1)
    dones.clear()
    counted, cpu = house.ended(), {name: cpu_s(pid) for name, pid in house.pids.items()}
    begin = time.perf_counter()
    own_s = time.process_time()
    answers = await _send(args, house, card, rps, lengths, args.seconds, args.seed)
    elapsed_s = time.perf_counter() - begin
    cores = {name: (cpu_s(pid) - cpu[name]) / elapsed_s for name, pid in house.pids.items()}
    cores["load"] = (time.process_time() - own_s) / elapsed_s
    ended = [after - before for after, before in zip(house.ended(), counted, strict=True)]
    await bus.drain()
    return {
        **summarise(answers, args.slo_ms, args.seconds),
        **_of_frontend(ended),
        **_of_batches(dones, elapsed_s),
        **_of_expected(dones, expected_ns),
        "profile": _profiles(card),
        "cpu": {name: round(share, 3) for name, share in cores.items()},
        "model": card.model_id,
        "slo_ms": args.slo_ms,
        "seconds": args.seconds,
        "seed": args.seed,
    }


def capacity_rps(card: OneshotCard, lengths: Sequence[int], slo_ms: float) -> float:
    """What one worker can serve: batches follow one another, so that a job may wait for one and
    run in the next, and both must fit into the target.

    Raises:
        InvalidRequest: not even single jobs do.
    """
    slo_ns = slo_ms * 1e6
    sizes = [variant.variant for variant in card.variants]
    job_ns = 0.0
    for length in lengths:
        index = next((n for n, size in enumerate(sizes) if size >= length), len(sizes) - 1)
        batch_ns = card.variants[index].batch_ns
        fits = [ns / n for n, ns in enumerate(batch_ns, start=1) if 2 * ns <= slo_ns]
        if not fits:
            raise InvalidRequest(
                f"--slo-ms {slo_ms:g}: a job of {length} tokens alone takes {batch_ns[0] / 1e6:g} "
                "ms, and may have to wait as long"
            )
        job_ns += min(fits) / len(lengths)
    return 1e9 / job_ns


def summarise(answers: Answers, slo_ms: float, seconds: float) -> dict[str, Any]:
    """What the client saw."""
    took_ms = np.array(answers.took_s) * 1e3
    status = np.array(answers.status)
    code = np.array([answers.code.get(number, "") for number in range(len(status))])
    is_answered = status == 200
    is_given_up = code == "deadline_exceeded"
    is_refused = (status == 503) & ~is_given_up
    is_good = is_answered & (took_ms <= slo_ms)
    num_kept = int((is_answered | is_given_up).sum())
    return {
        "offered_rps": round(len(status) / seconds, 1),
        "goodput_rps": round(int(is_good.sum()) / seconds, 1),
        "bad_rate": round(1 - int(is_good.sum()) / max(len(status), 1), 5),
        "refused": int(is_refused.sum()),
        "refused_after_p50_ms": _percentile(took_ms[is_refused], 50),
        "refused_after_p99_ms": _percentile(took_ms[is_refused], 99),
        "errors": int((~is_answered & ~is_given_up & ~is_refused).sum()),
        "client_miss_share": round((num_kept - int(is_good.sum())) / max(num_kept, 1), 5),
        "latency_p50_ms": _percentile(took_ms[is_answered], 50),
        "latency_p99_ms": _percentile(took_ms[is_answered], 99),
    }


def _of_frontend(ended: Sequence[int]) -> dict[str, Any]:
    """By `OUTCOMES`. What was refused was not dispatched."""
    _, late, unanswered = ended
    return {
        "miss_share": round((late + unanswered) / max(sum(ended), 1), 5),
        "late": late,
        "unanswered": unanswered,
    }


def _of_batches(dones: Sequence[BatchDone], seconds: float) -> dict[str, Any]:
    sizes = np.array([done.size for done in dones if done.size], np.int64)
    if not len(sizes):
        return {"batch_p50": 0.0, "batch_sizes": {}, "busy": 0.0}
    values, counts = np.unique(sizes, return_counts=True)
    return {
        "batch_p50": float(np.median(np.repeat(sizes, sizes))),
        "batch_sizes": {str(size): int(num) for size, num in zip(values, counts, strict=True)},
        "busy": round(sum(done.run_ns for done in dones) / 1e9 / seconds, 4),
    }


def _of_expected(dones: Sequence[BatchDone], expected_ns: Mapping[BatchId, int]) -> dict[str, Any]:
    """How much longer than it ran the scheduler expected a batch to take: its margin, and what it
    has learnt that the profile did not say.
    """
    over_ms = [
        (expected_ns[done.batch_id] - done.run_ns) / 1e6
        for done in dones
        if done.size and done.batch_id in expected_ns
    ]
    run_ms = [done.run_ns / 1e6 for done in dones if done.size]
    return {
        "run_p50_ms": _percentile(run_ms, 50),
        "run_p99_ms": _percentile(run_ms, 99),
        "expected_over_run_p50_ms": _percentile(over_ms, 50),
        "expected_over_run_p1_ms": _percentile(over_ms, 1),
    }


async def _first_report(bus: Bus) -> WorkerReport:
    reports: asyncio.Queue[WorkerReport] = asyncio.Queue()

    def on_report(report: WorkerReport) -> None:
        if report.oneshot and report.state == "ready":
            reports.put_nowait(report)

    subscription = await bus.subscribe(WORKER_REPORT, on_report)
    try:
        return await asyncio.wait_for(reports.get(), REPORT_WAIT_S)
    except TimeoutError:
        raise PeerUnavailable("no worker reports a one-shot model") from None
    finally:
        await subscription.unsubscribe()


def _profiles(card: OneshotCard) -> dict[str, dict[str, float]]:
    """By variant: the line through the measured times, as the scheduler fits it."""
    found = {}
    for variant in card.variants:
        times = variant.batch_ns
        if len(times) > 1:
            fit = BatchLatency.fit(list(enumerate(times, start=1)), size_max=len(times))
            found[str(variant.variant)] = {
                "alpha_ms": round(fit.alpha_ns / 1e6, 3),
                "beta_ms": round(fit.beta_ns / 1e6, 3),
                "r2": round(fit.r2, 4),
            }
    return found


async def _send(
    args: argparse.Namespace,
    house: House,
    card: OneshotCard,
    rps: float,
    lengths: Sequence[int],
    seconds: float,
    seed: int,
) -> Answers:
    due_s = (renewal([rps], seconds, seed).at_ns / 1e9).tolist()
    rng = random.Random(seed)
    requests = []
    for _ in due_s:
        num_words = rng.choice(lengths) - NUM_TOKENS_ADDED
        body = {"model": card.model_id, "input": " ".join(rng.choices(WORDS, k=num_words))}
        target = f"X-SLO-Ms: {args.slo_ms:g}".encode()
        requests.append(request_bytes("POST", PATH, house.port, orjson.dumps(body), target))
    return await send_all(house.port, requests, due_s, CONNECTIONS_MAX)


def _lengths(args: argparse.Namespace) -> range:
    if args.tokens < NUM_TOKENS_ADDED + 1:
        raise InvalidRequest(f"--tokens {args.tokens}: at least {NUM_TOKENS_ADDED + 1}")
    return range(max(args.tokens // 4, NUM_TOKENS_ADDED + 1), args.tokens + 1)


def _percentile(values_ms: Any, percent: float) -> float:
    return round(float(np.percentile(values_ms, percent)), 2) if len(values_ms) else 0.0


def _cli(*arguments: str, **settings: str) -> None:
    command = [sys.executable, "-m", "cli.main", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, **settings})


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _above(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench oneshot", description=__doc__)
    add = parser.add_argument
    add("--model", help="folder or hub id of an embedding model; else a random BERT of 4 x 256")
    add("--rps", type=_above, help="offered load; else 70%% of what the profile promises")
    add("--seconds", type=_above, default=20.0)
    add("--slo-ms", type=_above, default=150.0, help="target of every request")
    add("--tokens", type=int, default=60, help="longest text; they are at least a quarter of it")
    add("--variants", default="[32, 64]", help="input lengths to batch at, as a JSON list")
    add("--threads", type=int, default=0, help="the worker's; 0: all cores")
    add("--seed", type=int, default=1)
    return parser
