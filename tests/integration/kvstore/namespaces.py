"""Hosts on one machine with a link of a chosen speed between them that can be cut: network
namespaces, pairs of virtual interfaces, and the kernel's token bucket on both ends.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from shared.errors import InvalidRequest

BURST_S = 0.002  # sent at once by the bucket: timers are no finer
BURST_BYTES_MIN = 256 * 1024  # several of the kernel's largest packets
LATENCY = "50ms"  # of what waits in the bucket
_OWN_NAMESPACE = "/proc/thread-self/ns/net"
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A host, as far as its network goes."""

    name: str

    @property
    def command(self) -> list[str]:
        """What to put before a command that is to run there."""
        return ["ip", "netns", "exec", self.name]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """In the body this thread's new sockets are there, and so are processes that it starts."""
        own, there = (
            os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            for path in (_OWN_NAMESPACE, f"/run/netns/{self.name}")
        )
        try:
            _enter(there)
            try:
                yield
            finally:
                _enter(own)
        finally:
            os.close(own)
            os.close(there)


@dataclass(frozen=True, slots=True)
class Link:
    """Attributes:
    near, far: what to put before a command that is to run on that side.
    near_host, host: addresses of the near side and of the far side.
    device: its interface's name, on both sides.
    """

    near: list[str]
    far: list[str]
    near_host: str = "127.0.0.1"
    host: str = "127.0.0.1"
    device: str = "lo"

    def shape(self, gbit: float) -> None:
        """It carries so many gigabits a second each way from now on.

        Raises:
            InvalidRequest: the kernel cannot do that here; says why.
        """
        burst_bytes = max(int(gbit * 1e9 / 8 * BURST_S), BURST_BYTES_MIN)
        bucket = f"tbf rate {gbit * 1e9:.0f}bit burst {burst_bytes} latency {LATENCY}"
        for side in (self.near, self.far):
            _do([*side, *f"tc qdisc replace dev {self.device} root {bucket}".split()])

    def cut(self) -> None:
        """Nothing passes any more. The near side's connections are not told."""
        self._set("down")

    def mend(self) -> None:
        """It carries again."""
        self._set("up")

    def _set(self, state: str) -> None:
        _do([*self.far, *f"ip link set {self.device} {state}".split()])


@contextmanager
def namespaces(*names: str) -> Iterator[list[Namespace]]:
    """New namespaces, which know nobody but themselves, as long as the body lasts.

    Raises:
        InvalidRequest: this machine or this user cannot make any; says why.
    """
    if missing := [each for each in ("ip", "tc") if shutil.which(each) is None]:
        raise InvalidRequest(f"cannot shape a link without `{missing[0]}`")
    made = [Namespace(f"sym-{name}-{os.getpid()}") for name in names]
    with ExitStack() as stack:
        for each in made:
            _do(f"ip netns add {each.name}".split())
            stack.callback(_do, f"ip netns del {each.name}".split())
            _do([*each.command, "ip", "link", "set", "lo", "up"])
        yield made


def join(near: Namespace, far: Namespace, number: int = 0) -> Link:
    """A link between two of them, as fast as memory. It goes with either.

    Args:
        number: 0 to 63, another one for each link of a namespace.

    Raises:
        InvalidRequest: it cannot be made; says why.
    """
    device = f"link{number}"
    near_host, host = (f"10.255.0.{4 * number + at}" for at in (1, 2))
    ends = f"{device} netns {near.name} type veth peer name {device} netns {far.name}"
    _do(f"ip link add {ends}".split())
    for side, address in ((near, near_host), (far, host)):
        _do([*side.command, *f"ip addr add {address}/30 dev {device}".split()])
        _do([*side.command, *f"ip link set {device} up".split()])
    return Link(near.command, far.command, near_host, host, device)


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _do(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise InvalidRequest(f"cannot shape a link: `{' '.join(command)}`: {why[0]}")
