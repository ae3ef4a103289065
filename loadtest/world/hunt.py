"""``python -m loadtest.world.hunt FIRST NUM``: the first seed that fails, as JSON."""

import json
import logging
import sys

from loadtest.world.campaign import run_seeds


def main() -> None:
    """Print what was found."""
    logging.disable(logging.CRITICAL)
    first, num = int(sys.argv[1]), int(sys.argv[2])
    tally = run_seeds(first, num, stop_at_first=True)
    seed = next(iter(tally.failures), None)
    text = None if seed is None else tally.failures[seed]
    print(json.dumps({"seed": seed, "why": text, "num_seeds": tally.num_seeds}))


if __name__ == "__main__":
    main()
