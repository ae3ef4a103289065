"""A link of a chosen speed between two hosts on one machine: two network namespaces, a pair of
virtual interfaces, and the kernel's token bucket on both.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from shared.errors import InvalidRequest

BURST_S = 0.002  # sent at once by the bucket: timers are no finer
BURST_BYTES_MIN = 256 * 1024  # several of the kernel's largest packets
FAR_ADDRESS = "10.255.0.2"
LATENCY = "50ms"  # of what waits in the bucket


@dataclass(frozen=True, slots=True)
class Link:
    """Attributes:
    near, far: what to put before a command that is to run on that side.
    host: address of the far side.
    """

    near: list[str]
    far: list[str]
    host: str


LOOPBACK = Link([], [], "127.0.0.1")


@contextmanager
def shaped_link(gbit: float) -> Iterator[Link]:
    """A link of so many gigabits a second each way, as long as the body lasts.

    Raises:
        InvalidRequest: this machine or this user cannot make one; says why.
    """
    if missing := [each for each in ("ip", "tc") if shutil.which(each) is None]:
        raise InvalidRequest(f"--link-gbit: cannot shape a link without `{missing[0]}`")
    names = [f"sym-near-{os.getpid()}", f"sym-far-{os.getpid()}"]
    burst_bytes = max(int(gbit * 1e9 / 8 * BURST_S), BURST_BYTES_MIN)
    bucket = f"tbf rate {gbit:g}gbit burst {burst_bytes} latency {LATENCY}"
    with ExitStack() as stack:
        for name in names:
            _do(f"ip netns add {name}")
            stack.callback(_do, f"ip netns del {name}")
        near, far = (f"ip netns exec {name}" for name in names)
        _do(f"ip link add veth0 netns {names[0]} type veth peer name veth0 netns {names[1]}")
        for side, address in ((near, "10.255.0.1"), (far, FAR_ADDRESS)):
            _do(f"{side} ip addr add {address}/30 dev veth0")
            _do(f"{side} ip link set veth0 up")
            _do(f"{side} tc qdisc add dev veth0 root {bucket}")
        yield Link(near.split(), far.split(), FAR_ADDRESS)


def _do(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise InvalidRequest(f"--link-gbit: cannot shape a link: `{command}`: {why[0]}")
