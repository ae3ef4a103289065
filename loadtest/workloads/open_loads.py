"""`azure` and `servegen`: unannounced requests without sessions, to stand beside those
that are.

Users are a measure of load here: as many requests come as so many people of `sharegpt-like` send.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from math import gamma
from random import Random

from loadtest.workloads.script import Part, Script, ScriptedTurn
from loadtest.workloads.traces import cells_of, rows_of

AZURE = "azure/azure_llm_2023_conv.csv.gz"
RATES = "servegen/client_rates.csv.gz"
LENGTHS = "servegen/client_length_quantiles.csv.gz"
MODEL = "m-large"  # of ServeGen's the one with the most clients
USER_S = 140.0  # between two turns of a person who reads and types; the mean of `sharegpt-like`
QUANTILES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
COLUMNS = ("p5", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99")
PROMPT_MAX, OUTPUT_MAX = 32_000, 8_000  # tokens: what the smaller of the models takes


@cache
def _azure() -> tuple[tuple[int, int, int], ...]:
    """Nanoseconds from the first, tokens of the prompt, tokens of the answer."""
    rows = [
        (
            datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
            max(int(row["ContextTokens"]), 1),
            max(int(row["GeneratedTokens"]), 1),
        )
        for row in rows_of(AZURE)
    ]
    begin_s = rows[0][0]
    return tuple((round((at_s - begin_s) * 1e9), num_in, num_out) for at_s, num_in, num_out in rows)


def azure(num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """The trace from its beginning on, thinned out; no more can be asked for than it has (some 770
    users)."""
    rows = _azure()
    rate = len(rows) / (rows[-1][0] / 1e9)
    share = min(num_users / USER_S / rate, 1.0)
    rng = Random(f"{seed}/azure")
    return [
        _single(f"request{number}", at_ns, num_in, num_out)
        for number, (at_ns, num_in, num_out) in enumerate(rows)
        if at_ns < duration_ns and rng.random() < share
    ]


def _single(name: str, at_ns: int, num_prompt: int, num_output: int) -> Script:
    turn = ScriptedTurn(session=name, parts=(Part(name, num_prompt),), num_output=num_output)
    return Script(name=name, turns=(turn,), begins_ns=at_ns)


@dataclass(frozen=True, slots=True)
class Client:
    """A tenant in one window of time.

    Attributes:
        shape: of its gaps' distribution.
    """

    name: str
    rate_rps: float
    pattern: str
    shape: float

    def gap_s(self, rng: Random, factor: float) -> float:
        """Until its next request, in the mean `1 / (rate_rps * factor)`: the published shape, with
        the scale that follows from its rate."""
        mean_s = 1 / (self.rate_rps * factor)
        if self.pattern == "Weibull":
            return rng.weibullvariate(1.0, self.shape) * mean_s / _weibull_mean(self.shape)
        return rng.gammavariate(self.shape, mean_s / self.shape)


def _weibull_mean(shape: float) -> float:
    return gamma(1 + 1 / shape)


@cache
def _windows() -> dict[str, list[list[str]]]:
    """Rows by the beginning of the window."""
    found: dict[str, list[list[str]]] = {}
    for row in cells_of(RATES, MODEL):
        found.setdefault(row[2], []).append(row)
    return found


def _clients(window: str) -> list[Client]:
    """Who asks in it, and how; not of whom no shape is known."""
    return [
        Client(client, float(rate_rps), pattern, float(shape))
        for _, client, _, rate_rps, _, pattern, shape, _ in _windows()[window]
        if shape and float(shape) > 0 and float(rate_rps) > 0
    ]


@cache
def _lengths() -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Quantiles of prompts and answers by client: those of its first window."""
    found: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    for row in rows_of(LENGTHS):
        if row["model"] == MODEL and row["client"] not in found and row["in_p5"] and row["out_p5"]:
            num_in, num_out = (
                tuple(float(row[f"{way}_{column}"]) for column in COLUMNS) for way in ("in", "out")
            )
            found[row["client"]] = num_in, num_out
    return found


def servegen(num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """Tenants of one window of the trace, with their shares of the load and their bursts. Of those
    without published lengths each has another's."""
    rng = Random(f"{seed}/servegen")
    clients = _clients(rng.choice(sorted(_windows())))
    factor = num_users / USER_S / sum(client.rate_rps for client in clients)
    lengths = _lengths()
    scripts = []
    for client in clients:
        own = Random(f"{seed}/servegen/{client.name}")
        num_in, num_out = lengths.get(client.name) or lengths[own.choice(sorted(lengths))]
        turns = tuple(
            ScriptedTurn(
                session=f"{client.name}/{number}",
                parts=(Part(f"{client.name}/{number}", min(_draw(num_in, own), PROMPT_MAX)),),
                num_output=min(_draw(num_out, own), OUTPUT_MAX),
                wait_ns=at_ns,
            )
            for number, at_ns in enumerate(_arrivals(client, own, factor, duration_ns))
        )
        if turns:
            name = f"client{client.name}"
            scripts.append(Script(name=name, turns=turns, tenant=name))
    return scripts


def _arrivals(client: Client, rng: Random, factor: float, duration_ns: int) -> Iterator[int]:
    at_s = client.gap_s(rng, factor) * rng.random()
    while (at_ns := round(at_s * 1e9)) < duration_ns:
        yield at_ns
        at_s += client.gap_s(rng, factor)


def _draw(quantiles: tuple[float, ...], rng: Random) -> int:
    """A length, between the quantiles by a straight line; nothing is longer than the last one."""
    share = rng.random() * QUANTILES[-1]
    at = bisect_right(QUANTILES, share) - 1
    within = (share - QUANTILES[at]) / (QUANTILES[at + 1] - QUANTILES[at])
    return max(round(quantiles[at] + within * (quantiles[at + 1] - quantiles[at])), 1)
