"""The command line: arguments in, one call, exit code out."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli import options
from cli.adapters import commands as adapters
from cli.errors import errors_in_a_line
from cli.reporting import out, quiet_libraries
from cli.runfile import DEFAULT_DATA_DIR

NAME = "symphony"

# Plain and of one width, so that cli/help.txt can hold it word for word.
app = typer.Typer(
    name=NAME,
    rich_markup_mode=None,
    context_settings={"terminal_width": 80, "help_option_names": ["--help", "-h"]},
    help="Serves many-turn chats and agents, on many fine-tuned models, from few GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(adapters.app)

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def _folder(path: Path) -> Path:
    return path.expanduser().resolve()


@app.callback()
def _start() -> None:
    quiet_libraries()


@app.command()
def up(
    model: options.Models = None,
    hosts: options.NumHosts = 1,
    workers: options.NumWorkers = 1,
    no_worker: options.NoWorker = False,
    emulate: options.Emulate = None,
    true_pages: options.TruePages = False,
    adapter: options.Adapters = None,
    spares: options.NumSpares = 0,
    shards: options.NumShards = 1,
    tracker_shards: options.NumTrackerShards = 1,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8080,
    served_model_name: options.ServedNames = None,
    max_model_len: options.MaxModelLen = None,
    dtype: options.Dtype = None,
    allow_host: options.AllowedHosts = None,
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
    detach: options.Detach = False,
    nats_url: options.NatsUrl = None,
    redis_url: options.RedisUrl = None,
    no_restart: options.NoRestart = False,
    ready_timeout_s: options.ReadyTimeout = 900.0,
) -> None:
    """Start the whole house on this machine; Ctrl-C stops it."""
    from cli.adapters.offered import parse_offer
    from cli.models.names import check_names
    from cli.models.prepare import check_model
    from cli.start.options import HouseOptions
    from cli.start.up import up as run_here
    from cli.start.up import up_detached
    from cli.supervisor.children import free_port
    from shared.errors import ConfigError
    from shared.zoo import parse_emulation

    with errors_in_a_line():
        if emulate is not None:
            parse_emulation(emulate)
        elif true_pages:
            raise ConfigError("--true-pages is for emulated workers: say with --emulate of what")
        for source in model or ():
            check_model(source)
        check_names(served_model_name or (), num_models=len(model or ()))
        folder = _folder(data_dir)
        house = HouseOptions(
            data_dir=folder,
            models=tuple(model or ()),
            num_hosts=hosts,
            num_workers=0 if no_worker else workers,
            emulate=emulate,
            has_true_pages=true_pages,
            adapters=tuple(parse_offer(each, folder) for each in adapter or ()),
            num_spares=spares,
            num_shards=shards,
            num_tracker_shards=tracker_shards,
            host=host,
            port=port or free_port(),
            served_names=tuple(served_model_name or ()),
            max_model_len=max_model_len,
            dtype=dtype,
            allow_hosts=tuple(allow_host or ()),
            nats_url=nats_url,
            redis_url=redis_url,
            restart=not no_restart,
            ready_timeout_s=ready_timeout_s,
        )
        (up_detached if detach else run_here)(house)


@app.command()
def down(data_dir: options.DataDir = DEFAULT_DATA_DIR) -> None:
    """Stop the house."""
    from cli.down import down as stop

    with errors_in_a_line():
        stop(_folder(data_dir))
        out.print("symphony: stopped")


@app.command()
def status(data_dir: options.DataDir = DEFAULT_DATA_DIR, as_json: options.AsJson = False) -> None:
    """Say what runs, and how it is."""
    from cli.inspection.description import describe
    from cli.inspection.snapshot import look
    from cli.inspection.status import render
    from cli.runfile import running_house

    with errors_in_a_line():
        run = running_house(_folder(data_dir))
        report = describe(run, look(run))
    if as_json:
        print(json.dumps(report))
    else:
        out.print(render(report))


@app.command()
def chat(
    model: Annotated[str | None, typer.Option(metavar="TEXT", help="Model to talk to.")] = None,
    session: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Session to go on with.")
    ] = None,
    url: options.Url = None,
    api_key: options.ApiKey = "",
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Chat in the terminal."""
    from cli.chat.app import chat as talk
    from cli.runfile import running_house

    with errors_in_a_line():
        folder = _folder(data_dir)
        if url is not None:
            talk(url, model, session, api_key, folder)
        else:
            house = running_house(folder)
            talk(house.url, model, session, api_key, folder, house.http_cert_file)


@app.command()
def top(
    url: options.Url = None,
    api_key: options.ApiKey = "",
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Watch the house in the terminal: workers, memory, advisories, times."""
    from cli.runfile import running_house
    from cli.top.app import top as watch

    with errors_in_a_line():
        if url is not None:
            watch(url, api_key)
        else:
            house = running_house(_folder(data_dir))
            watch(house.url, api_key, house.http_cert_file)


@app.command()
def doctor(
    model: options.Models = None,
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
    as_json: options.AsJson = False,
) -> None:
    """Say what is installed, what is wrong, and whether a model can be served."""
    from cli.inspection.doctor import examine, show

    findings = examine(_folder(data_dir), models=model or ())
    show(findings, as_json=as_json)
    raise typer.Exit(0 if all(finding.is_fine for finding in findings) else 1)


@app.command(context_settings=PASS_ON)
def test(context: typer.Context) -> None:
    """Check style, types and behaviour. With arguments: run pytest alone, with them."""
    from cli.checks import run_checks

    with errors_in_a_line():
        raise typer.Exit(run_checks(context.args))


@app.command()
def docs(
    serve: Annotated[
        bool, typer.Option("--serve", help="Show it, and build it again when a page changes.")
    ] = False,
    port: Annotated[int, typer.Option(metavar="N", help="Where to show it.")] = 8000,
) -> None:
    """Build the site of the docs, in build/site."""
    from cli.docs.build import build_site, serve_site

    with errors_in_a_line():
        if serve:
            serve_site(port)
        else:
            build_site()


@app.command("profile-agents")
def profile_agents(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="A file of calls, or the name of a trace; docs/agents.md tells of both.",
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
    from cli.agents.profile import profile

    with errors_in_a_line():
        profile(trace, app_name, out_file, draw)


# Its --help is an option of ours: the help that comes with every command would keep the
# benchmark's from being seen.
@app.command(context_settings=PASS_ON)
def bench(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Which one; `list` lists them.", show_default=False),
    ] = "",
    as_json: options.AsJson = False,
    wants_help: Annotated[
        bool, typer.Option("--help", "-h", help="Show this message, or NAME's options, and exit.")
    ] = False,
) -> None:
    """Measure. Options after NAME go to the benchmark."""
    if not name and not wants_help:
        raise typer.BadParameter("say which one: `symphony bench list` lists them", context)
    if not name:
        print(context.get_help())
        return
    from cli.bench import run_bench

    with errors_in_a_line():
        run_bench(name, [*context.args, *(["--help"] if wants_help else [])], as_json=as_json)


@app.command()
def loadtest(
    what: Annotated[
        str,
        typer.Argument(
            metavar="[traces]",
            help="List the trace files, and where all of each is.",
            show_default=False,
        ),
    ] = "",
    users: options.NumUsers = 64,
    profile: options.LoadProfile = "chat",
    trace: options.LoadTrace = "",
    popularity: options.Popularity = "zipf:1",
    hints: options.HintsShare = 0.5,
    faster: options.Faster = 1.0,
    duration: options.DurationS = 120.0,
    spawn_rate: options.SpawnRate = 4.0,
    prompt_tokens: options.PromptTokens = 1024,
    rate: options.Rate = 2.0,
    slo_ttft_ms: options.SloTtft = 1000.0,
    slo_tpot_ms: options.SloTpot = 100.0,
    search: options.SearchRate = False,
    seed: options.Seed = 0,
    watch: options.Watch = False,
    web: options.Web = False,
    web_port: options.WebPort = 8089,
    model: Annotated[
        str, typer.Option(metavar="TEXT", help="Default: the first of the house.")
    ] = "",
    url: options.Url = None,
    api_key: options.ApiKey = "",
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
    out_dir: options.OutDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Let people and agents use a house, and say what they saw."""
    from cli.loadtest import Load, check_failures, run_load, show_summary, show_traces
    from loadtest.open_loop import Target
    from shared.errors import InvalidRequest

    with errors_in_a_line():
        if what == "traces":
            show_traces()
            return
        if what:
            raise InvalidRequest(f"{what!r}: `traces`, or options alone")
        load = Load(
            data_dir=_folder(data_dir),
            url=url,
            api_key=api_key,
            users=users,
            spawn_rate=spawn_rate,
            duration_s=duration,
            profile=profile,
            hints=hints,
            faster=faster,
            seed=seed,
            trace=trace,
            popularity=popularity,
            model=model,
            prompt_tokens=prompt_tokens,
            watch=watch,
            out_dir=None if out_dir is None else _folder(out_dir),
            web_port=web_port if web else None,
            rate=rate,
            target=Target(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms),
            is_search=search,
        )
        summary = run_load(load)
        if as_json:
            print(json.dumps(summary))
        else:
            show_summary(summary)
        check_failures(summary)


@app.command()
def demo(
    out_dir: options.DemoOut = None,
    seed: options.DemoSeed = 0,
    quick: options.Quick = False,
    as_json: options.AsJson = False,
) -> None:
    """Show what hints are worth, on a chat and on agents; three minutes."""
    from cli.demo import Demo, default_out_dir, run_demo

    with errors_in_a_line():
        folder = default_out_dir() if out_dir is None else _folder(out_dir)
        result = run_demo(Demo(out_dir=folder, seed=seed, is_quick=quick), is_shown=not as_json)
        if as_json:
            print(json.dumps(result))


@app.command()
def plan(
    model: options.PlanModel,
    users: options.PlanUsers,
    context: options.PlanContext,
    reply: options.PlanReply = 250,
    hinted: options.PlanHinted = 1.0,
    ttft_ms: options.PlanTtft = 1000.0,
    tpot_ms: options.PlanTpot = 50.0,
    percentile: options.PlanPercentile = "p95",
    gpu: options.PlanGpu = None,
    gpus_per_host: options.GpusPerHost = 4,
    gpus_max: options.GpusMax = 1024,
    dram_gb: options.DramGb = 256.0,
    disk_gb: options.DiskGb = 4000.0,
    link_gbit: options.LinkGbit = 100.0,
    seconds: options.PlanSeconds = 60.0,
    seed: options.PlanSeed = 1,
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
    as_json: options.AsJson = False,
) -> None:
    """Say how many GPUs, and how much memory, some people take: by simulation."""
    from cli.plan import check_question, profile_of, render, run_plan
    from cli.reporting import err
    from loadtest.planning.demand import Demand
    from loadtest.planning.machines import Machines
    from loadtest.planning.plan import Question
    from loadtest.planning.targets import Targets

    with errors_in_a_line():
        profile = profile_of(model, gpu, _folder(data_dir) / "models")
        question = Question(
            profile=profile,
            demand=Demand(
                users=users,
                context=context,
                reply=reply,
                hinted=hinted,
                tokens_max=profile.max_model_len,
            ),
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
            out.print(render(summary, model))


def main() -> None:
    """Run the command line of this process."""
    sys.exit(app(prog_name=NAME))


if __name__ == "__main__":
    main()
