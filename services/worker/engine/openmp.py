"""How torch's CPU threads wait for one another."""

import os

SPIN_COUNT = "1000"


def share_cores() -> None:
    """Let waiting threads sleep soon; call before torch is imported.

    By default they spin for milliseconds. On a machine that they share with other processes (the
    frontend, the kvstore) the spinning takes the core that the awaited thread needs: decoding was
    seen five to ten times slower. A user's own setting stands.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
