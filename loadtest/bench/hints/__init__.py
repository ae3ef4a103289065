"""``symphony bench hints``: time to first token of a turn whose history is on another host's disk,
by what was known of it before, and how long before.

Two hosts, each with a kvstore and a worker of its own. The history of each turn is made on the far
one, until all of it is on its disk; then the turn comes to the near one:

- `hinted`: a hint came before it, and all that the hint brought is in the worker's pool;
- `late`: a hint came before it, by half of the time that bringing it takes;
- `unhinted`: the turn itself says where its history is;
- `recompute`: its history is nowhere;
- `resident`: its history was made on the near host right before, and is in the worker's pool.

`lead_s_to_ttft` has more leads: from none to twice the time that bringing it takes (`transfer_ms`:
from the hint until nothing is on its way any more). Each turn has a session of its own, and a
worker's pool holds few of them. `cached_tokens` are the fewest of a turn that were not computed;
how much of what is on its way is computed instead is for the worker to decide. `num_void` turns
were run again, because the far host had not answered in time that it has their history.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from loadtest.bench.hints.cases import Seen, Trials
from loadtest.bench.hints.hosts import SPARE_BLOCKS, open_hosts
from loadtest.models import add_model_options, model_source, shape_of
from shared.blocks import BLOCK_TOKENS
from shared.errors import InvalidRequest
from shared.profiles import load_profile

LEADS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)  # of the time that bringing a history takes
LATE = 0.5  # of that
EMULATED_VOCAB = 256
GBIT_BYTES = 1e9 / 8


def run(argv: list[str]) -> dict[str, Any]:
    """``resident_ms``, ``hinted_ms``, ``late_ms``, ``unhinted_ms``, ``recompute_ms``: medians; and
    ``lead_s_to_ttft``: pairs of a lead in seconds and the median in ms.

    Raises:
        InvalidRequest: an option is wrong.
        PeerUnavailable: a host failed, or a turn did not meet what it was to meet.
    """
    args = _parser().parse_args(argv)
    if args.history_tokens < BLOCK_TOKENS:
        raise InvalidRequest(f"--history-tokens: use a number from {BLOCK_TOKENS} on")
    if min(args.sessions, args.new_tokens, args.lead_sessions) < 1:
        raise InvalidRequest("--sessions, --new-tokens, --lead-sessions: use numbers from 1 on")
    if args.link_gbit is not None and args.link_gbit <= 0:
        raise InvalidRequest("--link-gbit: use a number above 0")
    if args.emulate:
        profile = load_profile(args.emulate)
        token_bytes = profile.num_layers * profile.page_bytes(BLOCK_TOKENS) // BLOCK_TOKENS
        settings = {"emulate": args.emulate, "true_pages": "true"}
        return asyncio.run(_measure(args, settings, token_bytes, EMULATED_VOCAB))
    model = model_source(args, args.dtype)
    shape = shape_of(model)
    settings = {"models": f'["{model}"]'}
    return asyncio.run(_measure(args, settings, shape.token_bytes, shape.vocab_size))


async def _measure(
    args: argparse.Namespace, settings: dict[str, str], token_bytes: int, vocab_size: int
) -> dict[str, Any]:
    num_tokens = args.history_tokens + args.new_tokens
    num_blocks = num_tokens // BLOCK_TOKENS + SPARE_BLOCKS
    session_bytes = num_blocks * BLOCK_TOKENS * token_bytes
    figures: dict[str, Any] = {
        "history_tokens": args.history_tokens,
        "new_tokens": args.new_tokens,
        "kv_bytes": args.history_tokens // BLOCK_TOKENS * BLOCK_TOKENS * token_bytes,
        "link_gbit": args.link_gbit,
    }
    async with open_hosts(
        settings,
        session_bytes=session_bytes,
        vocab_size=vocab_size,
        link_bytes_per_s=(args.link_gbit or 0.0) * GBIT_BYTES,
    ) as hosts:
        is_slow = bool(args.emulate) or args.link_gbit is not None
        trials = Trials(hosts, args.history_tokens, args.new_tokens, can_be_computed=is_slow)
        _say("warming up")
        for each in (trials.recompute, trials.resident, trials.unhinted, trials.hinted):
            await each()
        seen = await _compare(trials, args.sessions)
        transfer_s = _transfer_s(seen["hinted"])
        figures |= summary(seen)
        leads = await _leads(trials, transfer_s, args.lead_sessions)
        figures["lead_s_to_ttft"] = lead_curve(leads)
        figures["num_void"] = trials.num_void
    return figures


async def _compare(trials: Trials, num_sessions: int) -> dict[str, list[Seen]]:
    """Each case as often, in turns, so that drift of the machine meets all."""
    seen: dict[str, list[Seen]] = {}

    async def late() -> Seen:
        return await trials.led(LATE * _transfer_s(seen["hinted"]))

    cases: dict[str, Callable[[], Awaitable[Seen]]] = {
        "resident": trials.resident,
        "hinted": trials.hinted,
        "late": late,
        "unhinted": trials.unhinted,
        "recompute": trials.recompute,
    }
    for _ in range(num_sessions):
        for name, trial in cases.items():
            seen.setdefault(name, []).append(await trial())
        _say(", ".join(f"{name} {each[-1].ttft_ms:.1f} ms" for name, each in seen.items()))
    return seen


async def _leads(
    trials: Trials, transfer_s: float, num_sessions: int
) -> list[tuple[float, list[Seen]]]:
    leads: list[tuple[float, list[Seen]]] = [(share * transfer_s, []) for share in LEADS]
    for _ in range(num_sessions):
        for lead_s, seen in leads:
            seen.append(await trials.led(lead_s))
    for lead_s, seen in leads:
        _say(f"hinted {lead_s * 1e3:.1f} ms before: {_median_ms(seen):.1f} ms")
    return leads


def lead_curve(leads: Sequence[tuple[float, list[Seen]]]) -> list[list[float]]:
    """Pairs of a lead, seconds, and the median time to the first token of the turns that were
    hinted so long before, ms.
    """
    return [[round(lead_s, 4), _median_ms(each)] for lead_s, each in leads]


def summary(seen: dict[str, list[Seen]]) -> dict[str, Any]:
    """What all turns come to, by case."""
    medians = {name: _median_ms(each) for name, each in seen.items()}
    return {
        **{f"{name}_ms": ms for name, ms in medians.items()},
        **{
            f"{name}_over_resident": round(medians[name] / medians["resident"], 2)
            for name in ("hinted", "unhinted", "recompute")
        },
        "transfer_ms": round(_transfer_s(seen["hinted"]) * 1e3, 1),
        "cached_tokens": {
            name: min(each.cached_tokens for each in of_case) for name, of_case in seen.items()
        },
        "samples_ms": {
            name: [round(each.ttft_ms, 1) for each in of_case] for name, of_case in seen.items()
        },
    }


def _transfer_s(hinted: list[Seen]) -> float:
    return statistics.median(each.transfer_s for each in hinted)


def _median_ms(seen: list[Seen]) -> float:
    return round(statistics.median(each.ttft_ms for each in seen), 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench hints", description=__doc__)
    parser.add_argument("--history-tokens", type=int, default=2000)
    parser.add_argument("--new-tokens", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=5, help="of each case")
    parser.add_argument("--lead-sessions", type=int, default=3, help="of each lead")
    parser.add_argument(
        "--link-gbit", type=float, help="what the far host sends at most; without it: loopback"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of random weights; few CPUs compute in bfloat16, and the others do it slowly",
    )
    parser.add_argument(
        "--emulate", default="", help="a latency profile in place of a model, with its true pages"
    )
    add_model_options(parser)
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
