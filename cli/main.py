"""The command line: arguments in, one call, exit code out.

Other distributions and packages add commands: an entry point of the group ``symphony.commands``
names a function that is called with `app`.
"""

import json
import sys
from functools import partial
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from cli.adapters import commands as adapters
from cli.base import options
from cli.base.errors import errors_in_a_line
from cli.base.reporting import out, quiet_libraries
from cli.base.runfile import DEFAULT_DATA_DIR

NAME = "symphony"
DISTRIBUTION = "symphony-serving"
COMMANDS = "symphony.commands"

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


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"symphony {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _start(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
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
    engine: options.Engine = "symphony",
    allow_host: options.AllowedHosts = None,
    cors: options.CorsOrigins = None,
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
    detach: options.Detach = False,
    nats_url: options.NatsUrl = None,
    redis_url: options.RedisUrl = None,
    nats_port: options.NatsPort = None,
    no_restart: options.NoRestart = False,
    ready_timeout_s: options.ReadyTimeout = 900.0,
) -> None:
    """Start a deployment on this machine; Ctrl-C stops it."""
    from cli.base.progress import busy_bar
    from cli.start.ahead import begun

    has_worker = not no_worker and emulate is None and engine == "symphony"
    with begun(is_detached=detach, has_worker=has_worker) as ahead, errors_in_a_line():
        with busy_bar("starting"):
            from cli.adapters.offered import parse_offer
            from cli.base.children import free_port
            from cli.start.options import DeploymentOptions
            from cli.up import check_options
            from cli.up import up as start

        folder = options.folder(data_dir)
        deployment = DeploymentOptions(
            data_dir=folder, models=tuple(model or ()), num_hosts=hosts,
            num_workers=0 if no_worker else workers, emulate=emulate, has_true_pages=true_pages,
            adapters=tuple(parse_offer(each, folder) for each in adapter or ()),
            num_spares=spares, num_shards=shards, num_tracker_shards=tracker_shards,
            host=host, port=port or free_port(), served_names=tuple(served_model_name or ()),
            max_model_len=max_model_len, dtype=dtype, engine=engine,
            allow_hosts=tuple(allow_host or ()), cors_origins=tuple(cors or ()),
            nats_url=nats_url, redis_url=redis_url, nats_port=nats_port, restart=not no_restart,
            ready_timeout_s=ready_timeout_s,
        )  # fmt: skip
        check_options(deployment)
        start(deployment, ahead)


@app.command()
def down(data_dir: options.DataDir = DEFAULT_DATA_DIR) -> None:
    """Stop the deployment."""
    from cli.down import down as stop

    with errors_in_a_line():
        stop(options.folder(data_dir))
        out.print("symphony: stopped")


@app.command()
def restart(
    service: options.Restarted = None, data_dir: options.DataDir = DEFAULT_DATA_DIR
) -> None:
    """Replace processes one after another, while the others serve."""
    from cli.restart import restart as replace

    with errors_in_a_line():
        replace(options.folder(data_dir), service or (), partial(out.print, "symphony:"))


@app.command()
def status(data_dir: options.DataDir = DEFAULT_DATA_DIR, as_json: options.AsJson = False) -> None:
    """Show what runs and its state."""
    from cli.base.runfile import running_deployment
    from cli.inspection.description import describe
    from cli.inspection.snapshot import look
    from cli.inspection.status import render

    with errors_in_a_line():
        run = running_deployment(options.folder(data_dir))
        report = describe(run, look(run))
    if as_json:
        print(json.dumps(report))
    else:
        out.print(render(report))


@app.command()
def logs(
    service: options.LoggingService = None,
    follow: options.Follow = False,
    lines: options.NumLines = 100,
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show what the processes log."""
    from cli.inspection.logs import logs_of, show_logs

    with errors_in_a_line():
        show_logs(logs_of(options.folder(data_dir), service), lines, print, follow=follow)


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
    from cli.base.runfile import running_deployment
    from cli.chat.app import chat as talk

    with errors_in_a_line():
        folder = options.folder(data_dir)
        if url is not None:
            talk(url, model, session, api_key, folder)
        else:
            deployment = running_deployment(folder)
            talk(deployment.url, model, session, api_key, folder, deployment.http_cert_file)


@app.command()
def top(
    url: options.Url = None,
    api_key: options.ApiKey = "",
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Watch workers, memory, advisories and latencies in the terminal."""
    from cli.base.runfile import running_deployment
    from cli.top.app import top as watch

    with errors_in_a_line():
        if url is not None:
            watch(url, api_key)
        else:
            deployment = running_deployment(options.folder(data_dir))
            watch(deployment.url, api_key, deployment.http_cert_file)


@app.command()
def doctor(
    model: options.Models = None,
    data_dir: options.DataDir = DEFAULT_DATA_DIR,
    as_json: options.AsJson = False,
) -> None:
    """Check the installation, the settings and whether a model can be served."""
    from cli.inspection.doctor import examine, show
    from cli.vllm_environment import describe_environment

    findings = examine(options.folder(data_dir), describe_environment, models=model or ())
    show(findings, as_json=as_json)
    raise typer.Exit(0 if all(finding.is_fine for finding in findings) else 1)


@app.command(context_settings=options.PASS_ON)
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


for command in entry_points(group=COMMANDS):
    command.load()(app)


def main() -> None:
    """Run the command line of this process."""
    sys.exit(app(prog_name=NAME))


if __name__ == "__main__":
    main()
