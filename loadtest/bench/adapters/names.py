"""What many registered names cost: traffic on the base without and with them, and looking them
up."""

import statistics
from pathlib import Path
from typing import Any

from cli.runfile import running_deployment
from loadtest.bench.adapters.house import AdapterHouse
from loadtest.bench.adapters.load import PATH, Clients
from loadtest.bench.adapters.lookup import measure_lookups
from loadtest.bench.adapters.registering import register_names, write_tiny
from loadtest.http_load import closed_loop
from loadtest.jobs.processes import cpu_s
from shared.errors import PeerUnavailable
from shared.messages import LoraCard

ROUNDS = 5
CONCURRENCY = 4
TICK_S = 0.01  # processor time is counted in such


async def measure_names(
    house: AdapterHouse,
    clients: Clients,
    model: str,
    card: LoraCard,
    num: int,
    into: Path,
    round_s: float,
) -> dict[str, Any]:
    """Register `num` names of one small adapter, with the base's traffic before and after.

    Args:
        model: the base's folder.
        into: a folder that the house may read from.
        round_s: how long the base is asked at a time.

    Raises:
        PeerUnavailable: a name was refused, or a request to the base failed.
    """
    folder = write_tiny(into / "tiny", card)
    names = [f"name-{number}" for number in range(num)]
    without = await _ask_base(house, clients, round_s)
    seconds = await register_names(house.port, names, folder)
    beside = await _ask_base(house, clients, round_s)
    run = running_deployment(house.house.data_dir)
    return {
        "registered": num,
        "seconds": round(seconds, 1),
        "per_s": round(num / seconds, 1),
        "base_without": without,
        "base_with": beside,
        "base_rate_ratio": round(beside["requests_per_s"] / without["requests_per_s"], 3),
        "base_ttft_ratio": round(beside["ttft_p50_ms"] / without["ttft_p50_ms"], 3),
        "base_cpu_ratio": round(beside["frontend_cpu_ms"] / without["frontend_cpu_ms"], 3),
        "lookup_us": await measure_lookups(run, model, card, names),
    }


async def _ask_base(house: AdapterHouse, clients: Clients, round_s: float) -> dict[str, Any]:
    """Medians of some rounds, and how far those are apart; and the processor time that the frontend
    took for a request, which is the same on a machine that others use too.
    """
    rounds, pid = [], house.pids()["frontend"]
    begun_s = cpu_s(pid)
    for _ in range(ROUNDS):
        body = clients.body(clients.base)
        rounds.append(
            await closed_loop(clients.port, PATH, body, concurrency=CONCURRENCY, seconds=round_s)
        )
    spent_s = max(cpu_s(pid) - begun_s, TICK_S)
    if num := sum(each.num_errors for each in rounds):
        raise PeerUnavailable(f"{num} requests to the base failed")
    num_requests = sum(len(each.status) for each in rounds)
    rates = [each.requests_per_s for each in rounds]
    times_ms = [statistics.median(each.first_s) * 1e3 for each in rounds]
    return {
        "requests_per_s": round(statistics.median(rates), 2),
        "requests_per_s_of_rounds": [round(rate, 2) for rate in rates],
        "ttft_p50_ms": round(statistics.median(times_ms), 2),
        "frontend_cpu_ms": round(spent_s / num_requests * 1e3, 3),
    }
