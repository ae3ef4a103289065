"""A damaged KV database under conversations that go on."""

import argparse
import asyncio
import os
import random
import shutil
import signal
import string
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import orjson

from cli.inspection.snapshot import look
from loadtest.deployment import Deployment, deployed, wait_until
from loadtest.fuzz.damage import damage, damage_slab
from loadtest.fuzz.report import Report
from loadtest.raw_http import ask, request_bytes
from shared.blocks import BLOCK_TOKENS
from shared.errors import PeerUnavailable
from shared.wire.messages import KvStats

CONVERSATIONS = 4
ASKED_EACH = 2  # conversations that go on in a trial
OPENING_CHARS = 300
REPLY_TOKENS = 24
KV_BYTES = 8 * 1024**2  # 21 blocks
FILLER_TOKENS = 1300  # leaves no room in the worker's pool for them
WAIT_S = 60.0
DATA_NAME = "data.mdb"
KVSTORE = "kvstore"


def add_options(parser: "argparse._ArgumentGroup") -> None:
    """Options of this mode."""
    parser.add_argument("--first-trial", type=int, default=0, help="its number (default 0)")


def deployment(args: argparse.Namespace) -> AbstractContextManager[Deployment]:
    """The deployment of this mode: its kvstore is started by us, with the files that we want."""
    return deployed("--no-restart", settings={"SYMPHONY_KV_BYTES": str(KV_BYTES)})


async def run(deployment: Deployment, seed: int, args: argparse.Namespace) -> Report:
    """Write conversations, then go on with them on one damaged copy of the database after another.
    The first trial is without damage, to see that the history comes from disk at all.
    """
    answer = await ask(deployment.port, request_bytes("GET", "/v1/models", deployment.port))
    model = orjson.loads(answer.body)["data"][0]["id"]
    report = Report(counts={"turns_with_wrong_tokens": 0})
    rng = random.Random(seed)
    talks = [Conversation(deployment.port, model, rng) for _ in range(CONVERSATIONS)]
    for talk in talks:
        await talk.begin()
    await asyncio.to_thread(
        _wait_for, deployment, lambda store: store.disk_blocks >= _num_blocks(talks)
    )
    with _kvstore_of(deployment) as kvstore:
        kvstore.stop()
        base = {path.name: path.read_bytes() for path in _files(kvstore.folder)}
        report.count("database_bytes", sum(map(len, base.values())))
        others = deployment.pids()
        trials = _Trials(deployment, kvstore, model, report)
        await trials.empty_pool(rng)
        found = await trials.run("no damage", base, talks, rng)
        report.expect(found > 0, "a whole database gave no history: nothing is shown")
        for number in range(args.first_trial, args.first_trial + args.disk):
            rng = random.Random(f"{seed}:{number}")
            name = rng.choice([DATA_NAME, DATA_NAME, *(name for name in base if name != DATA_NAME)])
            content = bytearray(base[name])
            what = (damage if name == DATA_NAME else damage_slab)(content, rng)
            damaged = {**base, name: bytes(content)}
            found = await trials.run(
                f"trial {number}, {what}", damaged, rng.sample(talks, ASKED_EACH), rng
            )
            report.count("trials")
            report.count("trials_with_history_from_disk", found > 0)
        report.expect(
            deployment.pids() == others, f"processes ended: {others} became {deployment.pids()}"
        )
    return report


class Conversation:
    """One that was begun, and the one way in which it goes on.

    Attributes:
        num_prompt: tokens of its next turn's prompt.
    """

    def __init__(self, port: int, model: str, rng: random.Random) -> None:
        self._port = port
        self._model = model
        text = "".join(rng.choices(string.ascii_lowercase + " ", k=OPENING_CHARS))
        self._messages = [{"role": "user", "content": text}]
        self._expected: list[int] = []
        self.num_prompt = 0

    async def begin(self) -> None:
        """The first turn, and the reference of the second.

        Raises:
            PeerUnavailable: it was not served.
        """
        reply = await self._ask()
        content = reply["choices"][0]["message"]["content"]
        self._messages += [
            {"role": "assistant", "content": content}, {"role": "user", "content": "Go on."},
        ]  # fmt: skip
        reply = await self._ask()
        self._expected = reply["choices"][0]["token_ids"]
        self.num_prompt = reply["usage"]["prompt_tokens"]

    async def go_on(self) -> tuple[bool, int]:
        """Whether the second turn is as expected, and how many of its tokens were not computed."""
        reply = await self._ask()
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        return reply["choices"][0]["token_ids"] == self._expected, cached

    async def _ask(self) -> Any:
        return await complete(
            self._port, "/v1/chat/completions",
            {"model": self._model, "messages": self._messages, "max_tokens": REPLY_TOKENS,
             "temperature": 0, "frequency_penalty": 0.5, "ignore_eos": True,
             "return_token_ids": True},
        )  # fmt: skip


async def complete(port: int, path: str, body: dict[str, Any]) -> Any:
    """A turn's answer.

    Raises:
        PeerUnavailable: it was refused, or did not come.
    """
    try:
        async with asyncio.timeout(WAIT_S):
            answer = await ask(port, request_bytes("POST", path, port, orjson.dumps(body)))
    except TimeoutError:
        raise PeerUnavailable(f"no answer within {WAIT_S:.0f} s") from None
    if answer.status != 200:
        raise PeerUnavailable(f"{answer.status}: {answer.body[:300]!r}")
    return orjson.loads(answer.body)


class _Trials:
    """One start after another."""

    def __init__(
        self, deployment: Deployment, kvstore: "_Kvstore", model: str, report: Report
    ) -> None:
        self._deployment = deployment
        self._kvstore = kvstore
        self._model = model
        self._report = report

    async def run(
        self, what: str, files: dict[str, bytes], talks: list[Conversation], rng: random.Random
    ) -> int:
        """Start on these files and go on with these; how many tokens came from disk."""
        self._kvstore.stop()
        self._kvstore.place(files)
        begun_at = time.monotonic()
        self._kvstore.start()
        try:
            await asyncio.to_thread(
                _wait_for, self._deployment, lambda store: store.arena_pages > 0
            )
            self._report.count("starts")
        except PeerUnavailable as error:
            self._report.expect(False, f"{what}: no start: {error.message}")
            return 0
        self._report.see("start_s", time.monotonic() - begun_at)
        self._report.count("set_aside", (self._kvstore.folder / f"{DATA_NAME}.damaged").exists())
        found = 0
        for talk in talks:
            try:
                is_right, cached = await talk.go_on()
            except PeerUnavailable as error:
                self._report.expect(False, f"{what}: a turn was not served: {error.message}")
                continue
            found += cached
            self._report.count("turns")
            self._report.count("turns_with_wrong_tokens", not is_right)
            self._report.expect(is_right, f"{what}: wrong tokens")
        await self.empty_pool(rng)
        self._report.expect(self._kvstore.is_alive(), f"{what}: the kvstore ended")
        return found

    async def empty_pool(self, rng: random.Random) -> None:
        """Have the worker forget the conversations, by a prompt that needs the room."""
        prompt = [rng.randrange(256) for _ in range(FILLER_TOKENS)]
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1}
        await complete(self._deployment.port, "/v1/completions", body)


class _Kvstore:
    """The deployment's kvstore as a process of ours.

    Attributes:
        folder: of its database.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._pid = deployment.pids()[KVSTORE]
        proc = Path(f"/proc/{self._pid}")
        self._command = (proc / "cmdline").read_text().split("\0")[:-1]
        variables = (proc / "environ").read_text().split("\0")[:-1]
        self._environment = dict(variable.split("=", 1) for variable in variables)
        self._log_path = deployment.data_dir / "logs" / "kvstore.log"
        self.folder = deployment.data_dir / "kv"
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """End it, in order the first time, with SIGKILL later; returns when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        elif Path(f"/proc/{self._pid}").exists():
            os.kill(self._pid, signal.SIGTERM)
            wait_until(lambda: not Path(f"/proc/{self._pid}").exists(), "the kvstore ended", WAIT_S)

    def place(self, files: dict[str, bytes]) -> None:
        """Make these its database."""
        shutil.rmtree(self.folder)
        self.folder.mkdir(mode=0o700)
        for name, content in files.items():
            (self.folder / name).write_bytes(content)

    def start(self) -> None:
        """Start it as the deployment did."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.poll() is None


@contextmanager
def _kvstore_of(deployment: Deployment) -> Iterator[_Kvstore]:
    """The deployment's kvstore, in our hands until the end of the block."""
    kvstore = _Kvstore(deployment)
    try:
        yield kvstore
    finally:
        kvstore.stop()


def _files(folder: Path) -> list[Path]:
    """Of its database: the index and the slabs."""
    return [folder / DATA_NAME, *sorted(folder.glob("*.slab"))]


def _num_blocks(talks: list[Conversation]) -> int:
    """Blocks that the conversations fill at least."""
    return sum(talk.num_prompt // BLOCK_TOKENS for talk in talks)


def _wait_for(deployment: Deployment, is_so: Callable[[KvStats], bool]) -> None:
    """Until the kvstore says so.

    Raises:
        PeerUnavailable: it does not in time.
    """

    def asked() -> bool:
        snapshot = look(deployment.run)
        return snapshot is not None and any(map(is_so, snapshot.stores))

    wait_until(asked, "the kvstore reports what it should", WAIT_S)
