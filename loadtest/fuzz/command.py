"""``symphony bench fuzz``: a house with the demo model, and strangers who mean no good.

One mode a run. A guarantee that does not hold is told, and makes the exit status 1.
"""

import argparse
import random
import shlex
import sys
from typing import Any

import uvloop

from loadtest.fuzz import slow_readers
from loadtest.fuzz.house import open_house


def run(argv: list[str]) -> dict[str, Any]:
    """Start a house, let the mode loose on it, and return what it found.

    Raises:
        PeerUnavailable: the house did not come up.
    """
    parser = argparse.ArgumentParser(prog="symphony bench fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="none: one is drawn, and told")
    modes = parser.add_mutually_exclusive_group(required=True)
    modes.add_argument("--slow-readers", action="store_true", help=slow_readers.__doc__)
    slow_readers.add_options(parser.add_argument_group("--slow-readers"))
    args = parser.parse_args(argv)
    seed = random.randrange(2**31) if args.seed is None else args.seed
    with open_house(slow_readers.settings(args)) as house:
        report = uvloop.run(slow_readers.run(house, seed, args))
    for violation in report.violations:
        print(f"violated: {violation}", file=sys.stderr)
    again = argv if args.seed is not None else [*argv, "--seed", str(seed)]
    return {
        "seed": seed,
        **report.as_dict(),
        "repeat": f"./symphony bench fuzz {shlex.join(again)}",
    }
