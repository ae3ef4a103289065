"""`symphony loadtest`: hands the command line to Locust in a process of its own, for gevent patches
everything it finds, and shows what it reports.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from rich.markdown import Markdown

from cli.base.children import ROOT
from cli.base.reporting import out
from cli.base.runfile import running_deployment
from cli.chat.address import call, http_client
from loadtest.trace_files import FILES, NOT_HERE
from loadtest.users.open_loop import Target
from loadtest.users.options import OPEN, Options
from loadtest.users.report import JSON, MARKDOWN
from loadtest.workloads.traces import path_of
from shared.errors import PeerUnavailable, SymphonyError

LOCUSTFILE = ROOT / "loadtest" / "users" / "locustfile.py"
LOG = "locust.log"
CRITICAL = "/CRITICAL/root: "  # what its log marks the reason of its end with
LOOK_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Options of the command line, which its help describes."""

    data_dir: Path
    url: str | None
    api_key: str
    users: int
    spawn_rate: float
    duration_s: float
    profile: str
    hints: float
    faster: float
    seed: int
    trace: str
    popularity: str
    model: str
    prompt_tokens: int
    watch: bool
    out_dir: Path | None
    web_port: int | None
    rate: float
    target: Target
    is_search: bool


def run_load(load: Load) -> dict[str, Any]:
    """Run it to its end and return its summary.

    Raises:
        NotFound: no deployment runs on the data folder, and no address was given.
        PeerUnavailable: no server answers there.
        SymphonyError: Locust said no, or turns failed; the report is there all the same.
    """
    url, cert = load.url, None
    if url is None:
        deployment = running_deployment(load.data_dir)
        url, cert = deployment.url, deployment.http_cert_file
    check_answers(url, load.api_key, cert)
    folder = load.out_dir or load.data_dir / "loadtests" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (JSON, LOG):
        (folder / name).unlink(missing_ok=True)
    if load.profile == OPEN:
        from loadtest.commands.open_load import OpenLoad, run_open

        return run_open(
            OpenLoad(
                options=_open_options(load, url, cert),
                folder=folder,
                rate=load.rate,
                target=load.target,
                is_search=load.is_search,
            )
        )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SYMPHONY_API_KEY": load.api_key}
    done = subprocess.run(
        locust_line(load, url, cert, folder), env=environment, cwd=folder, check=False
    )
    if not (folder / JSON).exists():
        raise SymphonyError(_why(folder / LOG))
    summary: dict[str, Any] = orjson.loads((folder / JSON).read_bytes())
    summary["report"] = str(folder / MARKDOWN)
    summary["locust_status"] = done.returncode
    return summary


def locust_line(load: Load, url: str, cert: Path | None, folder: Path) -> list[str]:
    """The command line of the child."""
    line = [
        sys.executable, "-P", "-m", "locust", "--locustfile", str(LOCUSTFILE), "--host", url,
        "--users", str(load.users), "--spawn-rate", f"{load.spawn_rate:g}",
        "--run-time", f"{max(round(load.duration_s), 1)}s", "--profile", load.profile,
        "--out", str(folder), "--logfile", str(folder / LOG),
        "--html", str(folder / "locust.html"),
        "--hints", f"{load.hints:g}", "--faster", f"{load.faster:g}", "--seed", str(load.seed),
        "--trace", load.trace, "--popularity", load.popularity, "--model", load.model,
        "--prompt-tokens", str(load.prompt_tokens),
    ]  # fmt: skip
    if load.web_port is None:
        line += ["--headless", "--only-summary", "--no-tables"]
    else:
        line += ["--web-host", "127.0.0.1", "--web-port", str(load.web_port)]
    line += ["--watch"] if load.watch else []
    return [*line, *(["--cert", str(cert)] if cert else [])]


def _open_options(load: Load, url: str, cert: Path | None) -> Options:
    return Options(
        url=url,
        profile=OPEN,
        duration_s=load.duration_s,
        hints=load.hints,
        faster=load.faster,
        seed=load.seed,
        api_key=load.api_key,
        cert="" if cert is None else str(cert),
        model=load.model,
    )


def show_summary(summary: dict[str, Any]) -> None:
    """For people.

    Raises:
        SymphonyError: turns failed.
    """
    text = Path(summary["report"]).read_text()
    out.print(Markdown("\n".join(line for line in text.splitlines() if not line.startswith("!["))))
    if found := summary.get("goodput"):
        out.print(
            f"\ngoodput {found['goodput_turns_per_s']:g} turns/s of {found['rate']:g} offered, "
            f"{100 * found['bad_share']:.1f} % bad (first token within "
            f"{found['slo_ttft_ms']:g} ms, then one in {found['slo_tpot_ms']:g} ms)"
        )
    out.print(f"\nreport and pictures: {summary['report']}")


def check_failures(summary: dict[str, Any]) -> None:
    """See that all went well.

    Raises:
        SymphonyError: turns failed, or there were none.
    """
    if failures := summary["failures"]:
        why = next(iter(summary["troubles"]))
        raise SymphonyError(f"{failures} of {summary['turns']} turns failed: {why}")
    if not summary["turns"]:
        raise SymphonyError("no turn ended in this time: use a longer --duration, or --faster")


def check_answers(url: str, api_key: str, cert: Path | None) -> None:
    """See that a server answers there.

    Raises:
        PeerUnavailable: none does, or not for this key.
    """
    with http_client(url, api_key, cert) as client:
        answer = call(client, "GET", "/v1/models", timeout=LOOK_S)
    if not answer.is_success:
        raise PeerUnavailable(f"{url}/v1/models: {answer.status_code} {answer.reason_phrase}")


def show_traces() -> None:
    """Each file: whether it is here, how it is replayed, and where the full public one is."""
    for file in FILES:
        is_here = path_of(file.path).is_file()
        out.print(f"[bold]{file.path}[/bold]" + ("" if is_here else "  (not here)"))
        out.print(f"    {f'--trace {file.replay}' if file.replay else file.why}")
        out.print(
            f"    {file.licence}, {file.source}" + (f"; here: {file.cut}" if file.cut else "")
        )
    out.print("[bold]not among them[/bold]")
    for name, where in NOT_HERE.items():
        out.print(f"    {name}: {where}")


def _why(log: Path) -> str:
    """What kept Locust from a report."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = [line.partition(CRITICAL)[2] for line in lines if CRITICAL in line]
    return said[-1] if said else f"Locust wrote no report (log: {log})"
