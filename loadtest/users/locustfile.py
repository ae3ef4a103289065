"""Symphony's users for Locust:
``locust -f loadtest/users/locustfile.py --host URL --profile chat``.

`./symphony loadtest` runs this too. In distributed mode, give workers the same options as the
master: what each saw is handed to it, and the report is of all.
"""

import csv
import logging
import os
import sys
import threading
import time
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from locust import User, events, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner
from locust.stats import PERCENTILES_TO_REPORT, StatsCSV
from rich.console import Console
from rich.live import Live

from loadtest.users.acting import Happening, lead_a_life
from loadtest.users.client import ApiError
from loadtest.users.graphs import team
from loadtest.users.measures import Turn
from loadtest.users.options import PROFILES, Options
from loadtest.users.report import write_report
from loadtest.users.stage import Stage
from loadtest.users.texts import DIALOGUES
from loadtest.users.watch import screen
from shared.errors import SymphonyError

WATCH_S = 1.0
SETTLE_S = 0.01


class Run:
    """This process's part of a run, and of all parts what was seen.

    Attributes:
        stage: None before anything is known.
        turns: of all processes, where this one gathers them.
        begin_s, end_s: monotonic.
    """

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self.turns: list[Turn] = []
        self.num_sent = 0
        self.num_begun = 0
        self.begin_s = self.end_s = 0.0
        self.num_reported = -1


RUN = Run()


class _Somebody(User):
    """Who is on the stage."""

    abstract = True

    @property
    def stage(self) -> Stage:
        """Of this process."""
        assert RUN.stage is not None, "users are spawned after the test began"
        return RUN.stage


class _Person(_Somebody):
    """One person after the other sits down here."""

    abstract = True

    @task
    def live(self) -> None:
        """From the first message until they leave."""
        stage = self.stage
        lead_a_life(stage, f"person{stage.next_number()}")


class ChatUser(_Person):
    """Reads, types, pauses, abandons, pastes and comes back."""


class PrefillUser(_Person):
    """The same, with a document beside each message, and short answers."""


class AdapterUser(_Person):
    """The same, each conversation with an adapter, by their popularity."""


class AgentUser(_Somebody):
    """One team of agents after the other writes a program."""

    @task
    def work(self) -> None:
        """On one program."""
        name = f"program{self.stage.next_number()}"
        Happening(self.stage, team(name, self.stage.rng(name))).run()


class ReplayUser(_Somebody):
    """Sees to it that scripts of a trace begin when they are due; or, of a trace with texts, a
    person who says them."""

    @task
    def replay(self) -> None:
        """The next one."""
        stage = self.stage
        if stage.options.trace in DIALOGUES:
            lead_a_life(stage, f"person{stage.next_number()}")
            return
        if not stage.scripts:
            time.sleep(1.0)
            return
        script = stage.scripts.popleft()
        due_at = stage.began_at + script.begins_ns / 1e9 / stage.options.faster
        time.sleep(max(due_at - time.monotonic(), 0.0))
        threading.Thread(target=Happening(stage, script).run, daemon=True).start()


USERS: dict[str, type[User]] = {
    "chat": ChatUser,
    "prefill": PrefillUser,
    "adapters": AdapterUser,
    "agents": AgentUser,
    "replay": ReplayUser,
}


def add_options(parser: ArgumentParser) -> None:
    """Ours beside Locust's own, of which `--profile`, `--host`, `-u`, `-r` and `-t` are used."""
    group = parser.add_argument_group("Symphony", f"--profile is one of {', '.join(PROFILES)}")
    group.add_argument("--hints", type=float, default=0.5, help="share of users who hint")
    group.add_argument("--faster", type=float, default=1.0, help="divides everybody's waits")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--api-key", default=os.environ.get("SYMPHONY_API_KEY", ""))
    group.add_argument("--model", default="", help="default: the first that generates")
    group.add_argument("--trace", default="", help="of replay: its name")
    group.add_argument("--popularity", default="zipf:1", help="of adapters: zipf:S, maf, uniform")
    group.add_argument("--prompt-tokens", type=int, default=1024, help="of prefill")
    group.add_argument("--out", default="", help="folder for the report; default: none is written")
    group.add_argument("--watch", action="store_true", help="show what was seen so far")
    group.add_argument("--cert", default="", help="certificate of the deployment's own TLS")
    group.add_argument("--no-tables", action="store_true", help=SUPPRESS)
    group.add_argument("--run-id", default=f"{time.time_ns() // 10**6:x}", help=SUPPRESS)


def options_of(environment: Environment) -> Options:
    """What the command line says."""
    parsed = environment.parsed_options
    assert parsed is not None
    return Options(
        url=str(environment.host or "http://127.0.0.1:8080"),
        profile=parsed.profile or "chat",
        users=parsed.num_users or 1,
        duration_s=float(parsed.run_time or 3600),
        hints=parsed.hints,
        faster=parsed.faster,
        seed=parsed.seed,
        api_key=parsed.api_key,
        cert=parsed.cert,
        model=parsed.model,
        run_id=parsed.run_id,
        out=parsed.out,
        popularity=parsed.popularity,
        trace=parsed.trace,
        prompt_tokens=parsed.prompt_tokens,
        watch=parsed.watch,
    )


def on_init(environment: Environment, **_: Any) -> None:
    """Only the profile's users are spawned. What they will say is made before the clock runs."""
    chosen, parsed = options_of(environment), environment.parsed_options
    environment.user_classes[:] = [USERS.get(chosen.profile, ChatUser)]
    if parsed is not None and parsed.no_tables:
        logging.getLogger("locust.stats_logger").disabled = True  # they are in its CSV and page
    if parsed is not None and parsed.headless and not isinstance(environment.runner, MasterRunner):
        try:
            stage = Stage(chosen, _fire(environment))
        except (ApiError, SymphonyError) as error:
            logging.critical("%s", error)
            sys.exit(1)
        if RUN.stage is None:  # a master may have begun the test meanwhile
            RUN.stage = stage
    if chosen.watch and not isinstance(environment.runner, WorkerRunner):
        threading.Thread(target=_watch, args=(environment,), daemon=True).start()
    time.sleep(SETTLE_S)  # gevent reads the clock when it next may


def on_test_start(environment: Environment, **_: Any) -> None:
    """Everything starts again."""
    RUN.turns, RUN.num_sent, RUN.num_reported = [], 0, -1
    RUN.begin_s, RUN.end_s = time.monotonic(), 0.0
    runner, parsed = environment.runner, environment.parsed_options
    if isinstance(runner, MasterRunner):
        return
    part, num_parts = 0, 1
    if isinstance(runner, WorkerRunner):
        counts = (getattr(parsed, name, 0) or 0 for name in ("expect_workers", "processes"))
        part = max(runner.worker_index, 0)
        num_parts = max(part + 1, *counts)  # so many share the scripts of a trace
    try:
        if RUN.stage is None or RUN.stage.is_over:
            chosen = options_of(environment)
            run_id = (
                f"{chosen.run_id}.{RUN.num_begun}"  # no user goes on with the last run's sessions
            )
            RUN.stage = Stage(replace(chosen, run_id=run_id), _fire(environment))
    except (ApiError, SymphonyError) as error:  # Locust would only log it
        logging.critical("%s", error)
        RUN.begin_s, environment.process_exit_code = 0.0, 1
        assert runner is not None
        runner.quit()
        return
    RUN.stage.begin(part, num_parts)
    RUN.num_begun += 1
    RUN.begin_s, RUN.turns = time.monotonic(), RUN.stage.turns


def on_test_stopping(**_: Any) -> None:
    """What ends from now on was cut off."""
    RUN.end_s = time.monotonic()
    if RUN.stage is not None:
        RUN.stage.is_over = True


def on_end(environment: Environment, **_: Any) -> None:
    """Show what became of caches and hints, and write the report, where all was gathered."""
    chosen = options_of(environment)
    is_known = len(RUN.turns) == RUN.num_reported
    if isinstance(environment.runner, WorkerRunner) or is_known or not RUN.begin_s:
        return
    seconds = (RUN.end_s or time.monotonic()) - RUN.begin_s
    RUN.num_reported = len(RUN.turns)
    if environment.parsed_options is not None and not environment.parsed_options.no_tables:
        Console(stderr=True).print(screen(RUN.turns, 0, seconds))  # Locust's own have times alone
    if not chosen.out:
        return
    folder = Path(chosen.out)
    write_report(folder, RUN.turns, chosen.as_dict(), seconds)
    tables = StatsCSV(environment, PERCENTILES_TO_REPORT)
    for name, write in (
        ("locust_stats.csv", tables.requests_csv),
        ("locust_failures.csv", tables.failures_csv),
    ):
        with (folder / name).open("w", newline="") as file:
            write(csv.writer(file))


def on_report_to_master(data: dict[str, Any], **_: Any) -> None:
    """Hand on what was seen since the last time."""
    seen = [] if RUN.stage is None else RUN.stage.turns[RUN.num_sent :]
    RUN.num_sent += len(seen)
    data["turns"] = [turn.as_dict() for turn in seen]


def on_worker_report(data: dict[str, Any], **_: Any) -> None:
    """Gather."""
    RUN.turns += [Turn(**turn) for turn in data.get("turns", ())]


def _fire(environment: Environment) -> Any:
    """Report a turn's times to Locust, which knows nothing but milliseconds."""

    def fire(kind: str, name: str, value: float, error: str = "", length: int = 0) -> None:
        environment.events.request.fire(
            request_type=kind,
            name=name,
            response_time=value,
            response_length=length,
            exception=ApiError(error) if error else None,
            context={},
        )

    def on_turn(turn: Turn) -> None:
        fire("turn", turn.kind, turn.total_ms, turn.trouble, turn.num_output)
        if turn.trouble:
            return
        fire("TTFT", turn.kind, turn.ttft_ms)
        if turn.tpot_ms is not None:
            fire("TPOT", turn.kind, turn.tpot_ms)

    return on_turn


@contextmanager
def _showing() -> Iterator[Live]:
    with Live(console=Console(stderr=True), refresh_per_second=1 / WATCH_S) as live:
        yield live


def _watch(environment: Environment) -> None:
    with suppress(KeyboardInterrupt), _showing() as live:
        while not RUN.end_s:
            time.sleep(WATCH_S)
            if RUN.begin_s:
                num_users = environment.runner.user_count if environment.runner else 0
                seconds = time.monotonic() - RUN.begin_s
                live.update(screen(RUN.turns, num_users, seconds), refresh=True)


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(on_init)
events.test_start.add_listener(on_test_start)
events.test_stopping.add_listener(on_test_stopping)
events.test_stop.add_listener(on_end)
events.quitting.add_listener(on_end)
events.report_to_master.add_listener(on_report_to_master)
events.worker_report.add_listener(on_worker_report)
