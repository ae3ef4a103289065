"""The options of the commands: what each is called, what it takes, and what the help says of it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def folder(path: Path) -> Path:
    """The folder that an option means."""
    return path.expanduser().resolve()


DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        metavar="PATH",
        envvar="SYMPHONY_DATA_DIR",
        help="Folder of all data that lasts.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
Models = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL",
        help="smollm2-135m (the default), minilm, demo, a folder, a GGUF file or a hub id; may "
        "be given several times.",
    ),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=DIR]",
        help="A LoRA adapter in PEFT's format, for all users, from a folder or "
        "hub:OWNER/REPO[@REVISION]. Without one of those it is one of ours: "
        "pirate, telegraph, json (of smollm2-135m), digits, capitals, vowels (of demo). May be "
        "given several times.",
    ),
]
NumHosts = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, max=64, help="Hosts on this machine, each with a kvstore of its own."
    ),
]
NumWorkers = Annotated[
    int, typer.Option(metavar="N", min=0, max=64, help="How many workers, on each host.")
]
NoWorker = Annotated[
    bool, typer.Option("--no-worker", help="The control plane alone; same as --workers 0.")
]
Emulate = Annotated[
    str | None,
    typer.Option(
        metavar="PROFILE", help="Emulate workers by this latency profile; needs no torch."
    ),
]
TruePages = Annotated[
    bool,
    typer.Option(
        "--true-pages",
        help="Emulated KV pages are as large as the profile's model would have them.",
    ),
]
NumSpares = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, max=8, help="Hot spares of each scheduler and tracker process."
    ),
]
NumShards = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, max=64, help="Schedulers that share turns and one-shot models."
    ),
]
NumTrackerShards = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, max=64, help="Tracker processes that share advisories by session."
    ),
]
Host = Annotated[
    str,
    typer.Option(metavar="ADDRESS", envvar="SYMPHONY_HTTP_ADDRESS", help="Address to listen on."),
]
Port = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        max=65535,
        envvar="SYMPHONY_HTTP_PORT",
        help="Port to listen on; 0: a free one.",
    ),
]
ServedNames = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="One more name of the model, NAME=MODEL where there are several; may be given "
        "several times.",
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Tokens of a prompt and its reply together, up to the model's own limit.",
        envvar="SYMPHONY_MAX_MODEL_LEN",
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="What models compute in; auto: as their files say.", envvar="SYMPHONY_DTYPE"),
]
Engine = Annotated[
    Literal["symphony", "vllm"],
    typer.Option(help="What computes generative models.", envvar="SYMPHONY_ENGINE"),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="One more name by which clients and web pages reach it; may be given several times.",
    ),
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="An origin, such as https://app.example.org, whose web pages may use it; may be given"
        " several times.",
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Return once ready.")]
NatsUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", envvar="SYMPHONY_NATS_URL", help="A NATS that runs already."),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", envvar="SYMPHONY_REDIS_URL", help="A Redis that runs already."),
]
NatsPort = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=65535, help="Port of our own NATS; default: a free one."),
]
LoggingService = Annotated[
    str | None,
    typer.Argument(
        metavar="SERVICE",
        show_default=False,
        help="A process, such as worker-0, or all of a kind, such as worker. Default: all.",
    ),
]
Restarted = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SERVICE",
        show_default=False,
        help="Processes, such as worker-0, or kinds, such as worker. Default: all services.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is logged later.")]
NumLines = Annotated[
    int, typer.Option("--lines", "-n", metavar="N", min=0, help="The last ones that are shown.")
]
NoRestart = Annotated[bool, typer.Option("--no-restart", help="Restart no process that dies.")]
ReadyTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1.0, help="How long the start may take.")
]
Url = Annotated[str | None, typer.Option(metavar="URL", help="Frontend of a deployment elsewhere.")]
ApiKey = Annotated[str, typer.Option(metavar="KEY", envvar="SYMPHONY_API_KEY", help="Its API key.")]
