"""`symphony up`: in front of the user, or behind them."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from cli.adapters.offered import check_offers, fetch_offers, make_offers, models_for
from cli.base.board import Step
from cli.base.progress import busy_bar
from cli.base.reporting import Reporter, TerminalReporter, for_data_dir
from cli.inspection.model_checks import check_models
from cli.models.catalog import DEFAULT
from cli.models.names import check_names, served_as
from cli.models.prepare import check_model, prepare_default, prepare_models
from cli.start.ahead import Ahead, Detached
from cli.start.gpus import gpus_of_workers
from cli.start.options import DeploymentOptions
from cli.start.precompile import precompiling
from cli.supervisor.deployment import check_start, run_deployment
from cli.supervisor.signals import StopRequested, StopSignals
from services.worker.config import WorkerConfig
from shared.errors import ConfigError, SymphonyError
from shared.private import PRIVATE_UMASK
from shared.runtime.config import load_config
from shared.zoo import parse_emulation

TICK_S = 0.2


def check_options(options: DeploymentOptions) -> None:
    """See that models, their names and what is emulated exist.

    Raises:
        ConfigError: one does not; names its option.
    """
    if options.emulate is not None:
        parse_emulation(options.emulate)
    elif options.has_true_pages:
        raise ConfigError("--true-pages is for emulated workers: say with --emulate of what")
    if options.nats_port is not None:
        if options.nats_url is not None:
            raise ConfigError("--nats-port is of our own NATS: with --nats-url there is none")
        if options.nats_port == options.port:
            raise ConfigError(f"--nats-port {options.nats_port}: --port is the same")
    if options.engine == "vllm" and options.emulate is not None:
        raise ConfigError("--engine vllm: --emulate is for the other engine")
    if options.models and options.emulate is not None:
        raise ConfigError(
            f"--model {options.models[0]}: with --emulate no model is loaded, emulated ones are "
            "served in its place: leave out one of the two"
        )
    for source in options.models:
        check_model(source)
    check_names(options.served_names, num_models=len(options.models))


def up(options: DeploymentOptions, ahead: Ahead) -> None:
    """Run the deployment here until Ctrl-C, or leave it to a supervisor and return once it is
    ready.

    Raises:
        SymphonyError: it did not come up or did not stay up; nothing is left running.
    """
    os.umask(PRIVATE_UMASK)
    if ahead.supervisor is None:
        _up_here(options, ahead.worker)
    else:
        _up_detached(options, ahead.supervisor)


def _up_here(options: DeploymentOptions, worker: "subprocess.Popen[bytes] | None") -> None:
    reporter = TerminalReporter(options.data_dir, "Ctrl-C")
    with ExitStack() as at_end:
        at_end.callback(reporter.close)
        run_deployment(_with_models(options, reporter, at_end), reporter, worker=worker)


def _up_detached(options: DeploymentOptions, supervisor: Detached) -> None:
    terminal = TerminalReporter(options.data_dir, for_data_dir("down", options.data_dir))
    with ExitStack() as at_end:
        options = _with_models(options, terminal, at_end)
        supervisor.send(options.dump())
        _follow(supervisor, terminal, options.supervisor_log)


def _follow(supervisor: Detached, terminal: TerminalReporter, log_path: Path) -> None:
    """Show what it reports until the deployment is ready."""
    with StopSignals() as signals:
        try:
            terminal.steps([Step("supervisor")])
            for report in _reports(supervisor.reports, signals, terminal.tick):
                if _hear(report, terminal):
                    return
        except StopRequested:
            supervisor.process.terminate()
            supervisor.process.wait()
            raise KeyboardInterrupt from None
        finally:
            terminal.close()
    supervisor.process.wait()
    raise ConfigError(f"the supervisor ended before the deployment was ready: see {log_path}")


def _with_models(
    options: DeploymentOptions, reporter: Reporter, at_end: ExitStack
) -> DeploymentOptions:
    """`options` with models that workers can load, and adapters that are there. In front of the
    user, since it may take minutes the first time; after a look at what would keep the deployment
    from starting anyway. Without a word on models, they are those that adapters are for.

    Args:
        at_end: ends what goes on beside the start.

    Raises:
        SymphonyError: a model cannot be had, an adapter is for another one, or the deployment could
            not start.
    """
    with busy_bar("checking the settings"):
        warnings = check_start(options)
    for warning in warnings:
        reporter.event(warning)
    kept = options.data_dir / "models"
    if options.emulate is not None or not options.num_workers:
        check_offers(options.adapters, ())
        return replace(options, adapters=fetch_offers(options.adapters, kept, reporter.progress))
    config = load_config(WorkerConfig)
    wanted = options.models or tuple(config.models)
    wanted = wanted or models_for(options.adapters)
    check_offers(options.adapters, [served_as(each) for each in wanted])
    adapters = fetch_offers(options.adapters, kept, reporter.progress)
    if options.engine == "symphony" and not gpus_of_workers(1, os.environ):
        at_end.enter_context(precompiling())
    if wanted:
        models = prepare_models(wanted, kept, reporter.progress)
    else:
        models = (prepare_default(kept, reporter.progress),)
    overrides = {"engine": options.engine} | ({"dtype": options.dtype} if options.dtype else {})
    config = config.model_copy(update=overrides)
    check_models(wanted or (DEFAULT,), kept, config, options.num_workers_in_all, reporter.progress)
    make_offers(adapters, models)
    python = ""
    if options.engine == "vllm":
        from cli.vllm_environment import worker_python

        python = worker_python()
    return replace(options, models=models, adapters=adapters, worker_python=python)


def _reports(pipe: int, signals: StopSignals, tick: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """What the supervisor sends, until it closes the pipe; `tick` is called meanwhile."""
    buffer = b""
    while True:
        while not signals.wait([pipe], TICK_S):
            tick()
        data = os.read(pipe, 65_536)
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        yield from map(json.loads, lines)


def _hear(report: dict[str, Any], terminal: Reporter) -> bool:
    """Pass a report of the supervisor on; True when the deployment is ready."""
    match report:
        case {"progress": text}:
            terminal.progress(text)
        case {"steps": steps}:
            terminal.steps([Step(**step) for step in steps])
        case {"event": text}:
            terminal.event(text)
        case {"failed": message}:
            raise SymphonyError(message)
        case {"ready": url, "reasons": reasons, "capacity": capacity}:
            terminal.ready(url, reasons, capacity)
            return True
    return False
