"""Options of the commands that measure, simulate and demonstrate."""

from pathlib import Path
from typing import Annotated, Literal

import typer

LoadWhat = Annotated[
    str,
    typer.Argument(
        metavar="[traces]",
        help="List the trace files, and where all of each is.",
        show_default=False,
    ),
]
LoadModel = Annotated[
    str, typer.Option("--model", metavar="TEXT", help="Default: the first that is served.")
]
NumUsers = Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Users at a time.")]
LoadProfile = Annotated[
    Literal["chat", "prefill", "agents", "adapters", "replay", "open"],
    typer.Option(help="Kind of users, as docs/loadtest.md describes."),
]
LoadTrace = Annotated[
    str, typer.Option(metavar="NAME", help="Of replay: which one; `loadtest traces` lists them.")
]
Popularity = Annotated[
    str,
    typer.Option(metavar="HOW", help="Of adapters: zipf:S, maf (Azure Functions) or uniform."),
]
HintsShare = Annotated[
    float, typer.Option(metavar="SHARE", min=0.0, max=1.0, help="Of users that send hints.")
]
Faster = Annotated[
    float, typer.Option(metavar="N", min=0.01, max=10_000, help="Divides the users' pauses.")
]
DurationS = Annotated[float, typer.Option(metavar="SECONDS", min=1.0, help="Duration of the run.")]
SpawnRate = Annotated[
    float, typer.Option(metavar="N", min=0.01, help="Users that start per second.")
]
PromptTokens = Annotated[
    int, typer.Option(metavar="N", min=1, help="Of prefill: of the document beside a message.")
]
Rate = Annotated[
    float,
    typer.Option(metavar="N", min=0.001, help="Of open: turns a second; of a search: the first."),
]
SloTtft = Annotated[
    float, typer.Option(metavar="MS", min=0.0, help="Of open: when the first token is in time.")
]
SloTpot = Annotated[
    float,
    typer.Option(metavar="MS", min=0.0, help="Of open: between tokens, in the mean of a turn."),
]
SearchRate = Annotated[
    bool,
    typer.Option("--search", help="Of open: find the highest rate at which at most 1 % are late."),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Same seed, same requests.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show figures while it runs.")]
Web = Annotated[bool, typer.Option("--web", help="Start from Locust's own page instead.")]
WebPort = Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="Of that page.")]
OutDir = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="For the report; default: in the data folder."),
]
DemoOut = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="For pictures and a page; default: in ~/.symphony/demos."
    ),
]
DemoSeed = Annotated[int, typer.Option("--seed", metavar="N", help="Same seed, same messages.")]
Quick = Annotated[bool, typer.Option("--quick", help="A few turns, to see that it works.")]
PlanModel = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A latency profile or a file of one, as --emulate of up takes them, or a model, as "
        "--model takes it.",
    ),
]
PlanUsers = Annotated[
    int,
    typer.Option("--users", metavar="N", min=1, max=1_000_000, help="People who chat at a time."),
]
PlanContext = Annotated[
    int,
    typer.Option(
        "--context", metavar="TOKENS", min=1, help="Of history, that the median turn has."
    ),
]
PlanReply = Annotated[
    int, typer.Option("--reply", metavar="TOKENS", min=1, help="Of the median answer.")
]
PlanHinted = Annotated[
    float,
    typer.Option(
        "--hinted", metavar="SHARE", min=0.0, max=1.0, help="Of turns that are announced."
    ),
]
PlanTtft = Annotated[
    float, typer.Option("--ttft-ms", metavar="MS", help="Limit of the time to the first token.")
]
PlanTpot = Annotated[
    float,
    typer.Option("--tpot-ms", metavar="MS", help="Limit of a turn's mean time between tokens."),
]
PlanPercentile = Annotated[
    Literal["p95", "p99"],
    typer.Option("--percentile", help="Of turns, for which both limits hold."),
]
PlanGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="Of a model's: h100 (the default), h200, b200, a100, a100-40gb, a10, l4, l40s.",
    ),
]
GpusPerHost = Annotated[int, typer.Option(metavar="N", min=1, max=64, help="On each host.")]
GpusMax = Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Most to try.")]
DramGb = Annotated[
    float, typer.Option(metavar="N", help="Memory of a host, of which KV has nine tenths; GiB.")
]
DiskGb = Annotated[float, typer.Option(metavar="N", help="Disk of a host for KV.")]
LinkGbit = Annotated[float, typer.Option(metavar="N", help="Of a host, into each direction.")]
PlanSeconds = Annotated[
    float,
    typer.Option("--seconds", metavar="N", help="Virtual time that counts, per run."),
]
PlanSeed = Annotated[int, typer.Option("--seed", metavar="N", help="Same seed, same requests.")]
BenchReadyTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1.0, help="How long a start in it may take.")
]
