"""What children are started with."""

import socket
from collections.abc import Iterator

import pytest

from cli.base import children


class Sockets:
    """Sockets whose ports are told beforehand."""

    def __init__(self, *ports: int) -> None:
        self._ports: Iterator[int] = iter(ports)
        self.num_open = 0

    def __call__(self) -> "Sockets":
        return self

    def __enter__(self) -> "Sockets":
        self.num_open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.num_open -= 1

    def bind(self, address: tuple[str, int]) -> None:
        assert address == ("127.0.0.1", 0)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", next(self._ports)


def test_a_free_port_is_not_the_one_that_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = Sockets(4001, 4001, 4003)
    monkeypatch.setattr(socket, "socket", sockets)
    assert children.free_port(but=4001) == 4003
    assert sockets.num_open == 0
