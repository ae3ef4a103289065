"""How torch's CPU threads wait for one another."""

import os

# Batch-1 decode of a 125 M model on two cores, alone and beside one busy process: 23 and 60 ms with
# 4000, 35 and 45 ms with 1000, 27 and 90 ms with 10000, 25 and over 200 ms with the default.
SPIN_COUNT = "4000"


def share_cores() -> None:
    """Let waiting threads sleep soon; call before torch is imported.

    By default they spin for milliseconds. On a machine that they share with other processes (the
    frontend, the kvstore) the spinning takes the core that the awaited thread needs: decoding was
    seen five to ten times slower. A user's own setting stands.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
