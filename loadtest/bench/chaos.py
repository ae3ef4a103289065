"""`bench chaos`: faults on purpose.

`--sim` and `--mutants`: of every kind, on all production cores in virtual time. `--end`, `--kill`,
`--stop` and `--away`: to a deployment of real processes with the demo model, under streams that
must come to their end token for token as on a good day. With `--adapters` each runs on the base or
an adapter. A guarantee that does not hold makes the exit status 1.
"""

import argparse
import math
import random
import shlex
from typing import Any, get_args

from loadtest.chaos import adapters, away, processes, virtual
from loadtest.chaos.scene import Setting
from loadtest.world.mutants import run_mutants
from services.worker.core.engine_limits import LoraStart
from shared.errors import InvalidRequest


def run(argv: list[str]) -> dict[str, Any]:
    """Run what the command line asks for; ``violations`` in the result is empty if all held.

    Raises:
        InvalidRequest: it asks for nothing, or for what cannot be.
    """
    options = _parser().parse_args(argv)
    if options.seeds < 1:
        raise InvalidRequest("--seeds: at least 1")
    if options.seed is not None and (options.mutants or options.sim):
        raise InvalidRequest(
            "--seed: of --end, --kill, --stop, --away; a simulation has --first, --seeds"
        )
    if options.mutants:
        return run_mutants(options.first, options.seeds)
    if options.sim:
        return virtual.run(options.first, options.seeds)
    if options.adapters < 0 or not 0 <= options.link_mb_s < math.inf:
        raise InvalidRequest("--adapters, --link-mb-s: from 0 on")
    if not (options.end or options.kill or options.stop or options.away):
        raise InvalidRequest("bench chaos: give --sim, --mutants, --end, --kill, --stop or --away")
    return _real(options, argv)


def _real(options: argparse.Namespace, argv: list[str]) -> dict[str, Any]:
    seed = random.randrange(2**31) if options.seed is None else options.seed
    setting = Setting(
        num_streams=options.streams,
        seed=seed,
        undisturbed_s=options.undisturbed_seconds,
        adapters=adapters.Wanted(
            num=options.adapters, lora_start=options.lora_start, link_mb_s=options.link_mb_s
        ),
    )
    if options.away:
        found = away.run(options.seconds, options.workers, options.spares, setting)
    else:
        wanted = processes.Wanted(
            end=options.end,
            kill=options.kill,
            stop=options.stop,
            stops_s=options.stop_seconds,
            rounds=options.rounds,
            num_workers=options.workers,
            num_spares=options.spares,
        )
        found = processes.run(wanted, setting)
    again = argv if options.seed is not None else [*argv, "--seed", str(seed)]
    return {"seed": seed, **found, "repeat": f"./symphony bench chaos {shlex.join(again)}"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench chaos", description=__doc__)
    modes = parser.add_argument_group("what is done; --end, --kill and --stop go together")
    modes.add_argument("--sim", action="store_true", help="seeded worlds in virtual time")
    modes.add_argument("--mutants", action="store_true", help="break the cores, and be found out")
    names = "processes by their names in `status`, or helper-0, a helper of worker-0; or all"
    modes.add_argument("--end", type=_names, default=(), metavar="NAMES", help=f"SIGTERM: {names}")
    modes.add_argument("--kill", type=_names, default=(), metavar="NAMES", help=names)
    modes.add_argument("--stop", type=_names, default=(), metavar="NAMES", help=names)
    modes.add_argument("--away", choices=["nats"], help="take it away, and bring it back")
    virtual = parser.add_argument_group("--sim, --mutants")
    virtual.add_argument("--seeds", type=int, default=2000, help="how many (default 2000)")
    virtual.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    real = parser.add_argument_group("--end, --kill, --stop, --away")
    real.add_argument("--streams", type=_count, default=64, help="all the time (default 64)")
    real.add_argument("--workers", type=_count, default=2, help="with the real engine (default 2)")
    real.add_argument("--spares", type=int, default=1, help="spare schedulers (default 1)")
    real.add_argument("--rounds", type=_count, default=1, help="of all faults (default 1)")
    real.add_argument(
        "--stop-seconds", type=_durations, default=(1.0, 5.0), help="one fault each (default 1,5)"
    )
    real.add_argument("--seconds", type=_duration, default=30.0, help="of --away (default 30)")
    real.add_argument(
        "--undisturbed-seconds", type=_duration, default=20.0, help="watched first (default 20)"
    )
    real.add_argument(
        "--adapters", type=int, default=0, help="that streams run on, and on the base, in turn"
    )
    real.add_argument(
        "--lora-start",
        choices=get_args(LoraStart),
        default="auto",
        help="of workers: how turns begin whose adapter is on its way (default auto)",
    )
    real.add_argument(
        "--link-mb-s", type=float, default=0.0, help="loads of adapters are as slow; 0: as memory"
    )
    real.add_argument("--seed", type=int, help="of what is asked; none: one is drawn and printed")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _duration(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _durations(text: str) -> tuple[float, ...]:
    return tuple(_duration(part) for part in text.split(","))
