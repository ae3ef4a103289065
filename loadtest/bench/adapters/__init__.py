"""``symphony bench adapters``: a house with many adapters of which a few have room in its pool.

The house runs as `symphony up` starts it (NATS, Redis, kvstore, scheduler, tracker, frontend), with
one worker started by hand, whose metrics can be read so. Adapters of mixed ranks are registered
over HTTP. The pool has room for `--room` images of the mean size beside the KV of `--turns` turns.
Then, for each popularity, streamed completions come at Poisson arrivals, whatever becomes of
earlier ones; some go to the base. Before that a closed loop of `--turns` clients says what the
house can do (`capacity_per_s`), and warms it up; without `--rate` the load is `--share` of it.

`ttft_ms` is what clients see, from when a request was due; `start_ttft_ms` what the worker sees, by
how turns came to their adapters, as `starts` counts them. `hit_share`: those that found theirs in
the pool; `best_hit_share`: requests for the `--room` most popular ones, for comparison. `loads`:
images by where they came from, the kvstore or the adapter's files. `rss_mb`: after the warm-up and
in the end, `own` without mapped files and shared memory. A failure is whatever is not all tokens of
a 200. `names`: how traffic on the base fares while so many more names are registered, and what
looking up takes. `--flood` measures only what one tenant that wants to add so many a minute costs
another's first tokens on the demo model. The load and every service share this machine.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import uvloop

from cli.adapters.offline import base_card
from loadtest.bench.adapters.flood import open_flood
from loadtest.bench.adapters.house import AdapterHouse, adapter_settings, open_adapter_house
from loadtest.bench.adapters.load import Clients, Lengths
from loadtest.bench.adapters.names import measure_names
from loadtest.bench.adapters.registering import first_tokens, register_all
from loadtest.bench.adapters.sizes import sizes_of
from loadtest.bench.adapters.summary import of_clients, of_memory
from loadtest.bench.lora.made import TARGETS
from loadtest.bench.options import numbers
from loadtest.functions_trace import TRACE
from loadtest.models import add_model_options, model_source, shape_of, with_tokenizer
from loadtest.popularity import Shares, best_share, shares_of
from shared.errors import InvalidRequest, PeerUnavailable
from shared.messages import LoraCard


@dataclass(frozen=True, slots=True)
class _Bench:
    """One house.

    Attributes:
        model: the base's folder.
        shares: of adapters, by popularity.
        sources: a folder that the house may read adapters from.
    """

    args: argparse.Namespace
    house: AdapterHouse
    model: str
    card: LoraCard
    shares: dict[str, Shares]
    sources: Path

    async def measure(self) -> dict[str, Any]:
        """Register, ask, and look back."""
        args = self.args
        names = [f"a{number}" for number in range(args.adapters)]
        ranks = numbers("ranks", args.ranks)
        clients = self._clients(names)
        found: dict[str, Any] = {
            "registered": await register_all(
                self.house.port, names, self.card, args.targets, ranks, self.sources
            )
        }
        _say(str(found["registered"]))
        if args.adds:
            found |= await first_tokens(clients, self.card, args.adds, self.sources)
            _say(f"first token after adding: {found['first_token_after_add_ms']:g} ms")
        found["popularity"] = {}
        for text, shares in self.shares.items():
            found["popularity"][text] = await self._ask(clients, text, shares)
        if args.names:
            found["names"] = await measure_names(
                self.house, clients, self.model, self.card, args.names, self.sources,
                args.names_seconds,
            )  # fmt: skip
        return found

    async def _ask(self, clients: Clients, text: str, shares: Shares) -> dict[str, Any]:
        """The load of one popularity."""
        args, house, pids = self.args, self.house, self.house.pids()
        warm, capacity = await clients.closed_loop(shares, args.turns, args.warm_seconds)
        warm_seen = of_clients(warm, args.max_tokens)
        rate = args.rate or args.share * capacity
        if not rate:
            raise PeerUnavailable(
                f"{text}: none of {len(warm)} requests ended well: {warm_seen['troubles']}"
            )
        _say(f"{text}: {rate:.2f} requests/s of {capacity:.2f}, for {args.seconds:g} s")
        before, memory = await house.worker_metrics(), house.memory()
        streams = await clients.open_loop(shares, rate, args.seconds)
        counted = (await house.worker_metrics()).since(before)
        found = {
            "capacity_per_s": round(capacity, 2),
            "rate_per_s": round(rate, 2),
            **of_clients(streams, args.max_tokens),
            "warm_up_failures": warm_seen["failures"],
            "warm_up_troubles": warm_seen["troubles"],
            "best_hit_share": round(best_share(shares, args.room), 3),
            **counted.figures(),
            "rss_mb": of_memory(memory, house.memory()),
            "restarted": sorted(
                name for name, pid in house.pids().items() if pids.get(name) != pid
            ),
        }
        _say(f"{text}: {found}")
        return found

    def _clients(self, names: list[str]) -> Clients:
        args = self.args
        return Clients(
            port=self.house.port,
            base=Path(self.model).name if Path(self.model).is_dir() else self.model,
            names=names,
            lengths=Lengths(prompt=args.prompt_tokens, max_tokens=args.max_tokens),
            vocab_size=shape_of(self.model).vocab_size,
            base_share=args.base_share,
            seed=args.seed,
        )


def run(argv: list[str]) -> dict[str, Any]:
    """Measure one house.

    Raises:
        InvalidRequest: an option is wrong, the model takes no adapters, or the disk has no room.
        PeerUnavailable: the house did not come up, or refused an adapter.
    """
    args = _parser().parse_args(argv)
    _check(args)
    if args.flood:
        with open_flood() as flood:
            return uvloop.run(flood.measure(args.flood, args.flood_seconds))
    shares = {
        text: shares_of(text, args.adapters, args.trace, args.seed)
        for text in args.popularity.split(",")
    }
    source = model_source(args, args.dtype)
    card = base_card(source)
    sizes = sizes_of(card, TARGETS[args.targets], numbers("ranks", args.ranks))
    sizes.check_disk(Path(gettempdir()), args.adapters)
    pool = sizes.pool_bytes(args.room, args.turns, args.prompt_tokens + args.max_tokens)
    with TemporaryDirectory(prefix="symphony-adapters-") as name:
        folder = Path(name)
        model, sources = with_tokenizer(source, folder), folder / "sources"
        sources.mkdir()
        settings = adapter_settings(sources, sizes.kv_disk_bytes(args.adapters))
        own = {"SYMPHONY_KV_BYTES": str(pool), "SYMPHONY_TURNS_RUNNING_MAX": str(args.turns)}
        with open_adapter_house(model, settings, own) as house:
            bench = _Bench(args, house, model, card, shares, sources)
            found = uvloop.run(bench.measure())
    sized = {"pool_mb": round(pool / 1e6, 1), "image_mb": round(sizes.image / 1e6, 2)}
    return {**sized, **found, "violations": _violations(found)}


def _violations(found: dict[str, Any]) -> list[str]:
    """Requests that failed, and processes that died."""
    told = []
    for text, each in found["popularity"].items():
        failures = each["failures"] + each["warm_up_failures"]
        if failures:
            troubles = each["troubles"] | each["warm_up_troubles"]
            told.append(f"{text}: {failures} requests failed: {', '.join(troubles)}")
        told += [f"{text}: {name} was started again" for name in each["restarted"]]
    return told


def _check(args: argparse.Namespace) -> None:
    numbers("ranks", args.ranks)
    for name in ("adapters", "room", "turns", "prompt_tokens", "max_tokens"):
        if getattr(args, name) < 1:
            raise InvalidRequest(f"--{name.replace('_', '-')}: at least 1")
    for name in ("seconds", "warm_seconds", "names_seconds", "flood_seconds"):
        if getattr(args, name) <= 0:
            raise InvalidRequest(f"--{name.replace('_', '-')}: more than 0")
    if not 0 <= args.base_share <= 1:
        raise InvalidRequest(f"--base-share {args.base_share:g}: from 0 to 1")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="symphony bench adapters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--adapters", type=int, default=1000)
    parser.add_argument("--ranks", default="8,16,32,64", help="that adapters have in turn")
    parser.add_argument("--targets", choices=sorted(TARGETS), default="all", help="linear layers")
    parser.add_argument(
        "--popularity", default="zipf:1,maf", help="some of uniform, zipf:S, maf (Azure Functions)"
    )
    parser.add_argument("--trace", type=Path, default=TRACE, help="of maf: calls of functions")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each popularity")
    parser.add_argument(
        "--warm-seconds", type=float, default=30.0, help="of the closed loop before"
    )
    parser.add_argument("--room", type=int, default=32, help="images that the pool has room for")
    parser.add_argument("--turns", type=int, default=32, help="that run at once, at most")
    parser.add_argument("--rate", type=float, default=0.0, help="requests/s; 0: by --share")
    parser.add_argument("--share", type=float, default=0.6, help="of what the house can do")
    parser.add_argument("--base-share", type=float, default=0.125, help="of requests, to the base")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--adds", type=int, default=5, help="timed from the addition on")
    parser.add_argument("--names", type=int, default=0, help="more names of one small adapter")
    parser.add_argument(
        "--names-seconds", type=float, default=5.0, help="of each of the base's rounds"
    )
    parser.add_argument(
        "--flood", type=float, default=0.0, help="only this: additions a minute by one tenant"
    )
    parser.add_argument("--flood-seconds", type=float, default=10.0, help="of each round of it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add_model_options(parser)
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
