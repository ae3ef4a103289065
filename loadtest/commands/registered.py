"""The command lines of the commands that loadtest adds to `symphony`.

Only what parses a command line is imported here: every start of `symphony` imports this module.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.base import options
from cli.base.errors import errors_in_a_line
from cli.base.runfile import DEFAULT_DATA_DIR
from loadtest.commands import options as own


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("profile-agents")(profile_agents)
    app.command(context_settings=options.PASS_ON)(bench)
    app.command()(loadtest)
    app.command()(demo)
    app.command()(plan)


def profile_agents(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="A file of calls, or the name of a trace; docs/agents.md describes both.",
            show_default=False,
        ),
    ],
    out_file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Save it, for SYMPHONY_AGENT_GRAPHS."),
    ] = None,
    app_name: Annotated[
        str,
        typer.Option("--app", metavar="NAME", help="Application: agents become NAME/AGENT."),
    ] = "",
    draw: Annotated[str, typer.Option(metavar="HOW", help="table, dot or mermaid.")] = "table",
) -> None:
    """Learn from a trace which agent calls which, and after how long."""
    from loadtest.commands.profile_agents import profile

    with errors_in_a_line():
        profile(trace, app_name, out_file, draw)


# Its --help is an option of ours: the help that comes with every command would keep the
# benchmark's from being seen.
def bench(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Which one; none: they are listed.", show_default=False
        ),
    ] = "",
    as_json: options.AsJson = False,
    ready_timeout_s: own.BenchReadyTimeout = 300.0,
    wants_help: Annotated[
        bool, typer.Option("--help", "-h", help="Show this message, or NAME's options, and exit.")
    ] = False,
) -> None:
    """Run a benchmark. Options after NAME are the benchmark's."""
    if not name and wants_help:
        print(context.get_help())
        return
    from loadtest.commands.bench import listing, run_bench
    from loadtest.starting import starts_limited

    if not name:
        print(listing(as_json=as_json))
        return
    with errors_in_a_line(), starts_limited(ready_timeout_s):
        run_bench(name, [*context.args, *(["--help"] if wants_help else [])], as_json=as_json)


def loadtest(
    what: own.LoadWhat = "",
    users: own.NumUsers = 64,
    profile: own.LoadProfile = "chat",
    trace: own.LoadTrace = "",
    popularity: own.Popularity = "zipf:1",
    hints: own.HintsShare = 0.5,
    faster: own.Faster = 1.0,
    duration: own.DurationS = 120.0,
    spawn_rate: own.SpawnRate = 4.0,
    prompt_tokens: own.PromptTokens = 1024,
    rate: own.Rate = 2.0,
    slo_ttft_ms: own.SloTtft = 1000.0,
    slo_tpot_ms: own.SloTpot = 100.0,
    search: own.SearchRate = False,
    seed: own.Seed = 0,
    watch: own.Watch = False,
    web: own.Web = False,
    web_port: own.WebPort = 8089,
    model: own.LoadModel = "",
    url: options.Url = None,
    api_key: options.ApiKey = "",
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
    out_dir: own.OutDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Send the load of users and agents, and report latencies and failures."""
    from loadtest.commands.load import Load, check_failures, run_load, show_summary, show_traces
    from loadtest.users.open_loop import Target
    from shared.errors import InvalidRequest

    with errors_in_a_line():
        if what == "traces":
            show_traces()
            return
        if what:
            raise InvalidRequest(f"{what!r}: `traces`, or options alone")
        load = Load(
            data_dir=options.folder(data_dir), url=url, api_key=api_key, users=users,
            spawn_rate=spawn_rate, duration_s=duration, profile=profile, hints=hints,
            faster=faster, seed=seed, trace=trace, popularity=popularity, model=model,
            prompt_tokens=prompt_tokens, watch=watch, web_port=web_port if web else None,
            out_dir=None if out_dir is None else options.folder(out_dir), rate=rate,
            target=Target(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms), is_search=search,
        )  # fmt: skip
        summary = run_load(load)
        print(json.dumps(summary)) if as_json else show_summary(summary)
        check_failures(summary)


def demo(
    out_dir: own.DemoOut = None,
    seed: own.DemoSeed = 0,
    quick: own.Quick = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare a chat and agents with hints and without; three minutes."""
    from loadtest.commands.demo import Demo, default_out_dir, run_demo

    with errors_in_a_line():
        folder = default_out_dir() if out_dir is None else options.folder(out_dir)
        result = run_demo(Demo(out_dir=folder, seed=seed, is_quick=quick), is_shown=not as_json)
        if as_json:
            print(json.dumps(result))


def plan(
    model: own.PlanModel,
    users: own.PlanUsers,
    context: own.PlanContext,
    reply: own.PlanReply = 250,
    hinted: own.PlanHinted = 1.0,
    ttft_ms: own.PlanTtft = 1000.0,
    tpot_ms: own.PlanTpot = 50.0,
    percentile: own.PlanPercentile = "p95",
    gpu: own.PlanGpu = None,
    gpus_per_host: own.GpusPerHost = 4,
    gpus_max: own.GpusMax = 1024,
    dram_gb: own.DramGb = 256.0,
    disk_gb: own.DiskGb = 4000.0,
    link_gbit: own.LinkGbit = 100.0,
    seconds: own.PlanSeconds = 60.0,
    seed: own.PlanSeed = 1,
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
    as_json: options.AsJson = False,
) -> None:
    """Find by simulation how many GPUs and how much memory a load needs."""
    from cli.base.reporting import err, out
    from loadtest.commands.plan import (
        check_question,
        gpus_of_this_machine,
        profile_of,
        render,
        run_plan,
    )
    from loadtest.planning.demand import Demand
    from loadtest.planning.machines import Machines
    from loadtest.planning.plan import Question
    from loadtest.planning.targets import Targets

    with errors_in_a_line():
        profile = profile_of(model, gpu, options.folder(data_dir) / "models")
        demand = Demand(
            users=users, context=context, reply=reply, hinted=hinted,
            tokens_max=profile.max_model_len,
        )  # fmt: skip
        question = Question(
            profile=profile,
            demand=demand,
            targets=Targets(ttft_ms=ttft_ms, tpot_ms=tpot_ms, percentile=percentile),
            machines=Machines(
                gpus=gpus_per_host, dram_gb=dram_gb, disk_gb=disk_gb, link_gbit=link_gbit
            ),
            gpus_max=gpus_max,
            seconds=seconds,
            seed=seed,
        )
        check_question(question)
        summary = run_plan(question, lambda text: err.print(f"[dim]symphony: {text}[/dim]"))
        if as_json:
            print(json.dumps(summary))
        else:
            out.print(render(summary, model, gpus_of_this_machine()))
