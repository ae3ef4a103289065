"""``symphony bench fuzz``: a deployment with the demo model, and strangers who mean no good.

One mode a run. A guarantee that does not hold is reported, and makes the exit status 1.
"""

import argparse
import random
import shlex
import sys
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol

import uvloop

from loadtest.deployment import Deployment
from loadtest.fuzz import disk, malformed, poison, schemas, slow_readers
from loadtest.fuzz.report import Report
from loadtest.fuzz.tenancy import mode as tenants


class Mode(Protocol):
    """A module of this package."""

    def deployment(self, args: argparse.Namespace, /) -> AbstractContextManager[Deployment]: ...

    def run(
        self, deployment: Deployment, seed: int, args: argparse.Namespace, /
    ) -> Coroutine[Any, Any, Report]: ...


def run(argv: list[str]) -> dict[str, Any]:
    """Start a deployment, let the mode loose on it, and return what it found.

    Raises:
        PeerUnavailable: the deployment did not come up.
        InvalidRequest: an option has a value that makes no sense.
    """
    parser = argparse.ArgumentParser(prog="symphony bench fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="default: one is drawn, and printed")
    modes = parser.add_mutually_exclusive_group(required=True)
    modes.add_argument("--poison", action="store_true", help=poison.__doc__)
    modes.add_argument("--http", type=int, nargs="?", const=5000, help=malformed.__doc__)
    modes.add_argument("--disk", type=int, nargs="?", const=200, help=disk.__doc__)
    modes.add_argument("--slow-readers", action="store_true", help=slow_readers.__doc__)
    modes.add_argument("--tenants", action="store_true", help=tenants.__doc__)
    modes.add_argument("--schemas", type=int, nargs="?", const=5000, help=schemas.__doc__)
    poison.add_options(parser.add_argument_group("--poison"))
    malformed.add_options(parser.add_argument_group("--http"))
    disk.add_options(parser.add_argument_group("--disk"))
    slow_readers.add_options(parser.add_argument_group("--slow-readers"))
    tenants.add_options(parser.add_argument_group("--tenants"))
    args = parser.parse_args(argv)
    seed = random.randrange(2**31) if args.seed is None else args.seed
    report = _run_mode(args, seed)
    for violation in report.violations:
        print(f"violated: {violation}", file=sys.stderr)
    again = argv if args.seed is not None else [*argv, "--seed", str(seed)]
    return {
        "seed": seed,
        **report.as_dict(),
        "repeat": f"./symphony bench fuzz {shlex.join(again)}",
    }


def _run_mode(args: argparse.Namespace, seed: int) -> Report:
    if args.schemas is not None:  # in this process
        return schemas.tried(range(seed, seed + args.schemas))
    mode: Mode = poison if args.poison else slow_readers
    if args.http is not None:
        mode = malformed
    elif args.disk is not None:
        mode = disk
    elif args.tenants:
        mode = tenants
    with mode.deployment(args) as deployment:
        return uvloop.run(mode.run(deployment, seed, args))
