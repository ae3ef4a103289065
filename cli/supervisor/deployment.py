"""The supervisor: starts the children, watches them, and stops them in order, whatever happens."""

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cli.adapters.offered import offer_all
from cli.base.children import death_watch, free_port, how_it_ended, is_listening
from cli.base.config import LauncherConfig
from cli.base.reporting import Reporter
from cli.base.runfile import (
    RunningService,
    RunState,
    check_free,
    remove_run_state,
    take_lock,
    write_run_state,
)
from cli.inspection.capacity import capacity_of, capacity_text
from cli.inspection.condition import assess
from cli.inspection.description import process_states
from cli.start.hosts import remove_arenas
from cli.start.options import DeploymentOptions
from cli.start.plan import (
    ChildPlan,
    DeploymentPlan,
    check_data_dir,
    check_size,
    plan_deployment,
)
from cli.start.server_data import DataRescue
from cli.start.servers import prepare_servers
from cli.supervisor.asking import Asking
from cli.supervisor.liveness import Liveness, Round
from cli.supervisor.preflight import (
    check_addresses,
    check_machine,
    check_nats,
    check_settings,
    frontend_config,
    open_servers,
    tenants_of,
)
from cli.supervisor.readiness import Readiness
from cli.supervisor.rotation import LogKeeper, kept
from cli.supervisor.signals import StopRequested, StopSignals
from cli.supervisor.standby import Standby
from cli.supervisor.supervision import Effect, GiveUp, StartAt, Supervision
from shared.errors import SymphonyError, reason
from shared.private import check_private

STOP_GRACE_S = 10.0
STOP_POLL_S = 0.1
READY_POLL_S = 0.1
LISTEN_POLL_S = 0.02
LISTEN_TIMEOUT_S = 20.0
LOG_TAIL_BYTES = 16_384
REWRITE_NS = 5_000_000_000
ASKER_PATIENCE_S = 15.0  # it has to be started, on a busy machine
ESSENTIAL = frozenset({"nats", "frontend"})


class DeploymentFailed(SymphonyError):
    """A child does not stay alive, or the deployment was not ready in time."""


def check_start(options: DeploymentOptions) -> list[str]:
    """See that nothing is known that would keep a deployment from starting; `run_deployment` looks
    again. What to warn of all the same.

    Raises:
        ConfigError: something is.
    """
    check_data_dir(options.data_dir)
    check_free(options.data_dir)
    plan, _ = _checked_plan(options)
    warnings = open_servers(options, plan)
    if options.adapters and options.num_hosts > 1:
        warnings.append(
            "--adapter: its files are on the first host alone: turns on it fail with 503 on "
            "workers of the others"
        )
    return warnings


def run_deployment(
    options: DeploymentOptions,
    reporter: Reporter,
    on_accepted: Callable[[], None] = lambda: None,
    worker: "subprocess.Popen[bytes] | None" = None,
) -> None:
    """Run a deployment until a signal asks it to stop.

    Args:
        on_accepted: called when nothing is known that keeps it from starting, before it does.
        worker: a process that becomes the first worker, see `Standby`.

    Raises:
        ConfigError: it cannot start like this. Nothing is left running.
        DeploymentFailed: it did not come up, or a child keeps dying. Nothing is left running.
    """
    check_data_dir(options.data_dir)
    lock = take_lock(options.data_dir)
    try:
        plan, config = _checked_plan(options)
        on_accepted()
        prepare_servers(options, plan.nats_port, tenants_of(plan), config.redis_bytes_max)
        logs = LogKeeper(options.data_dir / "logs", config.log_bytes_max, reporter.event)
        with StopSignals() as signals:
            _live(Supervisor(options, plan, reporter, signals, logs, config, worker), reporter)
    except OSError as error:  # the disk filled up, or there are no more processes
        raise DeploymentFailed(f"{error.filename or options.data_dir}: {error.strerror}") from None
    finally:
        remove_run_state(options.data_dir)
        os.close(lock)


def _checked_plan(options: DeploymentOptions) -> tuple[DeploymentPlan, LauncherConfig]:
    check_addresses(options)
    check_size(options)
    nats_port = options.nats_port or free_port(but=options.port)
    plan = plan_deployment(options, nats_port, os.environ)
    config = check_settings(plan)
    tls_files = frontend_config(plan).tls_files
    plan = replace(
        plan,
        nats_access=config.nats_access,
        redis_access=config.redis_access,
        http_cert_file=None if tls_files is None else tls_files[0].resolve(),
    )
    tenants_of(plan)
    for host in options.hosts:
        check_private(host.arena_dir, "SYMPHONY_ARENA_DIR")
    remove_arenas(options.host_id)  # of a killed deployment, which may have had more hosts
    check_machine(plan, options)
    if options.nats_url is not None:
        check_nats(options.nats_url, plan.nats_access)
    return plan, config


def _live(supervisor: "Supervisor", reporter: Reporter) -> None:
    try:
        supervisor.start()
        supervisor.wait_ready()
        supervisor.watch()
    except StopRequested:
        reporter.event("stopping")
    finally:
        supervisor.stop()


class Supervisor:
    """The children of one deployment. Everything happens on the main thread, which the kernel's
    watch on parents needs.
    """

    def __init__(
        self,
        options: DeploymentOptions,
        plan: DeploymentPlan,
        reporter: Reporter,
        signals: StopSignals,
        logs: LogKeeper,
        config: LauncherConfig,
        worker: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self._signals = signals
        self._options = options
        self._plans = {child.name: child for child in (*plan.servers, *plan.services)}
        self._plan = plan
        self._reporter = reporter
        self._supervision = Supervision(restart=options.restart, essential=ESSENTIAL)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._rescues = {
            child.name: DataRescue(child.name, child.data, child.log_path)
            for child in plan.servers
            if child.data is not None
        }
        self._state = "starting"
        self._logs = logs
        self._liveness = Liveness(
            int(config.status_interval_s * 1e9), int(config.stuck_after_s * 1e9)
        )
        self._silent: list[str] = []  # when last written down
        self._write_at_ns: int | None = None  # again, since it could not be
        self._asking: Asking | None = None
        # Who would not be started again is not killed.
        if plan.start_asker is not None and config.stuck_after_s and options.restart:
            patience_s = config.status_interval_s + max(config.stuck_after_s, ASKER_PATIENCE_S)
            self._asking = Asking(plan.start_asker, int(patience_s * 1e9))
        self._standby = Standby(plan.start_standby if options.restart else None, worker)
        self._readiness = Readiness(
            [child.name for child in plan.servers], [child.name for child in plan.services]
        )
        self._degraded: list[str] = []  # reasons, when last looked
        self._capacity = ""  # the same

    def start(self) -> None:
        """Start the servers, wait until they listen, start the services."""
        self._write_down()
        if self._plan.servers:
            names = " and ".join(child.name for child in self._plan.servers)
            self._reporter.progress(f"starting {names}")
        for child in self._plan.servers:
            self._start_child(child.name)
        for child in self._plan.servers:
            self._wait_listening(child)
            self._readiness.on_listening(child.name)
        self._reporter.progress(
            f"starting {', '.join(child.name for child in self._plan.services)}"
        )
        for child in self._plan.services:
            self._start_child(child.name)
        self._write_down()

    def wait_ready(self) -> None:
        """Return when a turn can be served and every service stands."""
        deadline = time.monotonic() + self._options.ready_timeout_s
        while not self._is_ready():
            if time.monotonic() >= deadline:
                raise DeploymentFailed(
                    f"not ready within {self._options.ready_timeout_s:g} s: "
                    f"see {self._options.data_dir / 'logs'}"
                )
            self._watch_once(READY_POLL_S)
        self._offer_adapters()
        for rescue in self._rescues.values():
            if (notice := rescue.notice()) is not None:
                self._reporter.event(notice)
        self._supervision.on_ready()
        self._liveness.on_deployment_ready()
        self._state = "ready"
        self._write_down()
        self._reporter.ready(self._url, self._degraded, self._capacity)

    def _offer_adapters(self) -> None:
        options, plan = self._options, self._plan
        if options.adapters:
            self._reporter.progress(f"adding {', '.join(each.name for each in options.adapters)}")
            for warning in offer_all(
                plan.nats_url, plan.nats_access, options.host_id, options.adapters
            ):
                self._reporter.event(warning)

    def watch(self) -> None:
        """Restart what dies, and kill what does not answer, until a signal comes or a child does
        not stay alive.
        """
        now_ns = time.monotonic_ns()
        if self._asking is not None:
            self._asking.begin(now_ns)
        self._standby.begin(now_ns)
        while True:
            self._watch_once(None)

    def stop(self) -> None:
        """Stop every child, those that depend on others first."""
        if self._asking is not None:
            self._asking.close()
        self._standby.close()
        if self._children:
            self._state = "stopping"
            self._write_down()
        for stage in sorted({plan.stop_stage for plan in self._plans.values()}):
            children = [
                child
                for name, child in self._children.items()
                if self._plans[name].stop_stage == stage
            ]
            _stop_together(children, self._signals)
        remove_arenas(self._options.host_id)
        self._options.remove_socket()

    def _watch_once(self, patience_s: float | None) -> None:
        """Wait for a death, an answer, a restart or a look at the logs that is due, or the end of
        `patience_s`; handle it.
        """
        asking = self._asking
        for next_at_ns in (
            self._supervision.next_at_ns(),
            self._logs.next_at_ns(),
            self._write_at_ns,
            asking.next_at_ns if asking is not None else None,
            self._standby.next_at_ns,
        ):
            if next_at_ns is not None:
                due_s = max(next_at_ns - time.monotonic_ns(), 0) / 1e9
                patience_s = due_s if patience_s is None else min(patience_s, due_s)
        reports = asking.files if asking is not None else []
        with death_watch(self._children.values()) as files:
            readable = self._signals.wait([*files, *reports], patience_s)
        now_ns = time.monotonic_ns()
        for name, child in list(self._children.items()):
            if (code := child.poll()) is not None:
                del self._children[name]
                self._liveness.on_exit(name)
                if not self._rescue(name, code):
                    self._perform(name, code, self._supervision.on_exit(name, now_ns))
        for name in self._supervision.due(now_ns):
            self._restart(name)
            self._write_down()
        if self._write_at_ns is not None and self._write_at_ns <= now_ns:
            self._write_down()
        self._logs.look(now_ns)
        self._standby.tend(now_ns)
        if asking is not None:
            if any(file in readable for file in reports):
                for finished in asking.read(now_ns):
                    self._on_round(finished)
            asking.tend(now_ns)

    def _rescue(self, name: str, code: int) -> bool:
        """Start a server again whose data was damaged; whether it was."""
        if name not in self._rescues or (done := self._rescues[name].on_exit(code)) is None:
            return False
        self._reporter.event(done)
        self._restart(name)
        self._write_down()
        return True

    def _on_round(self, finished: Round) -> None:
        """Kill stuck children. The kernel does not deliver less to a process that is stopped."""
        for stuck in self._liveness.on_round(finished, self._states_in(finished)):
            silent_s = stuck.silent_ns / 1e9
            self._reporter.event(f"{stuck.name} does not answer for {silent_s:g} s; killing it")
            self._children[stuck.name].kill()
        silent = self._liveness.silent()
        if silent != self._silent:
            self._silent = silent
            self._write_down()

    def _states_in(self, finished: Round) -> dict[str, str]:
        """States that our children report, by name: on a shared NATS others answer as well."""
        said = {
            (answer.service, answer.instance, answer.pid): answer.state
            for answer in finished.services
        }
        states = dict.fromkeys(finished.servers, "ready")
        for name, child in self._children.items():
            plan = self._plans[name]
            key = (plan.service, plan.environment.get("SYMPHONY_INSTANCE", ""), child.pid)
            if key in said:
                states[name] = said[key]
        return states

    def _perform(self, name: str, code: int, effects: list[Effect]) -> None:
        what = f"{name} {how_it_ended(code)}"
        if not effects:
            self._reporter.event(f"{what}; not restarted, as asked")
            self._write_down()
        for effect in effects:
            match effect:
                case StartAt(_, at_ns, is_failing):
                    if not is_failing:
                        self._reporter.event(f"{what}; restarting it")
                        continue
                    pause_s = max(at_ns - time.monotonic_ns(), 0) / 1e9
                    why = self._last_words(name)
                    self._reporter.event(f"{what}, again: {why}; next try in {pause_s:.0f} s")
                    self._write_down()
                case GiveUp(_, num_deaths):
                    times = f", {num_deaths} times in a row" if num_deaths > 1 else ""
                    raise DeploymentFailed(f"{what}{times}: {self._last_words(name)}")

    def _start_child(self, name: str) -> None:
        self._signals.check()
        if name in self._rescues:
            self._rescues[name].on_started()
        plan, now_ns = self._plans[name], time.monotonic_ns()
        standby = self._standby.take(plan, now_ns) if plan.service == "worker" else None
        self._children[name] = standby or plan.start()
        self._supervision.on_started(name, now_ns)
        self._liveness.on_started(name, is_server=not plan.service)

    def _restart(self, name: str) -> None:
        try:
            self._start_child(name)
        except OSError as error:  # no more processes, or no memory
            now_ns = time.monotonic_ns()
            self._reporter.event(f"{name} cannot be started: {reason(error)}; trying again")
            self._supervision.on_started(name, now_ns)
            self._supervision.on_exit(name, now_ns)

    def _wait_listening(self, child: ChildPlan) -> None:
        assert child.listens is not None
        deadline = time.monotonic() + LISTEN_TIMEOUT_S
        while not is_listening(child.listens):
            if time.monotonic() >= deadline:
                raise DeploymentFailed(
                    f"{child.name} does not listen on {_place(child.listens)}: "
                    f"{self._last_words(child.name)}"
                )
            self._reporter.steps(self._readiness.steps)
            self._watch_once(LISTEN_POLL_S)

    def _is_ready(self) -> bool:
        run = self._run_state()
        snapshot = self._readiness.look(run)
        self._reporter.steps(self._readiness.steps)
        if snapshot is None:
            return False
        self._degraded = assess(
            replace(run, state="ready"), process_states(run, snapshot), snapshot
        ).reasons
        self._capacity = capacity_text(capacity_of(snapshot.pools, snapshot.stores))
        return True

    @property
    def _url(self) -> str:
        url = self._options.url
        return url if self._plan.http_cert_file is None else url.replace("http:", "https:", 1)

    def _run_state(self) -> RunState:
        return RunState(
            pid=os.getpid(),
            state=self._state,
            url=self._url,
            http_cert_file=self._plan.http_cert_file,
            nats_url=self._plan.nats_url,
            redis_url=self._plan.redis_url,
            nats_access=self._plan.nats_access,
            redis_access=self._plan.redis_access,
            host_id=self._options.host_id,
            num_hosts=self._options.num_hosts,
            num_workers=self._options.num_workers_in_all,
            services=[
                RunningService(name=name, pid=self._children[name].pid)
                for name in self._plans
                if name in self._children
            ],
            names=list(self._plans),
            failing=self._supervision.failing(),
            silent=self._liveness.silent(),
            restarts=self._options.restart,
        )

    def _write_down(self) -> None:
        """Say in ``run.json`` what runs; while the disk takes nothing, later."""
        try:
            write_run_state(self._options.data_dir, self._run_state())
        except OSError as error:
            if self._state == "starting":
                raise
            if self._write_at_ns is None:
                self._reporter.event(f"run.json is out of date: {reason(error)}")
            self._write_at_ns = time.monotonic_ns() + REWRITE_NS
        else:
            self._write_at_ns = None

    def _last_words(self, name: str) -> str:
        path = self._plans[name].log_path
        return f"{last_line(path)} (log: {path})"


def last_line(path: Path) -> str:
    """The last thing a log says, in words: a JSON line's message, and its exception's last line.
    One that was just emptied says it in the copy.
    """
    earlier = kept(path, 1)
    if earlier.exists() and path.exists() and not path.stat().st_size:
        path = earlier
    try:
        with path.open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES, 0))
            lines = log.read().decode(errors="replace").split("\n")
    except OSError:
        return "it left no log"
    text = next((line.strip() for line in reversed(lines) if line.strip()), "it logged nothing")
    try:
        record = json.loads(text)
        message = str(record["message"])
        exception = str(record.get("exception", "")).strip().split("\n")[-1]
    except (ValueError, KeyError, TypeError, AttributeError):
        return text
    return f"{message}: {exception}" if exception else message


def _place(listens: int | Path) -> str:
    return str(listens) if isinstance(listens, Path) else f"port {listens}"


def _stop_together(children: Sequence["subprocess.Popen[bytes]"], signals: StopSignals) -> None:
    for child in children:
        child.terminate()
    deadline = time.monotonic() + STOP_GRACE_S
    while living := [child for child in children if child.poll() is None]:
        if signals.is_hurried or time.monotonic() >= deadline:
            for child in living:
                child.kill()
                child.wait()
            return
        with death_watch(living) as files:
            select.select(files, [], [], STOP_POLL_S)
