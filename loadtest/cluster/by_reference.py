"""A network without faults, on which messages that expect no reply travel as they are: receivers do
not change them, and millions are neither encoded nor decoded.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from loadtest.sim.client import SimBus
from loadtest.sim.network import Message
from loadtest.sim.wires import Wires
from shared.wire.messages import decode
from shared.wire.subjects import Subject

Req = TypeVar("Req")


def _pack(message: Any) -> Any:
    return message


def _unpack(kind: Any, data: Any) -> Any:
    return decode(kind, data) if isinstance(data, bytes) else data


class ReferenceWires(Wires):
    """The network, as simulated parties see it."""

    pack = staticmethod(_pack)
    unpack = staticmethod(_unpack)


class ReferenceBus(SimBus):
    """The production bus on it."""

    async def publish(self, subject: Subject[Req, Any], message: Req, *ids: str) -> None:
        client: Any = self._client
        client.network.publish(client.process, Message(subject.name(*ids), message))

    async def subscribe(
        self, subject: Subject[Req, Any], handler: Callable[[Req], None], *ids: str
    ) -> Any:
        name = subject.name(*ids)

        async def on_message(message: Any) -> None:
            self._handle(name, handler, message.data)

        return await self._subscribe_raw(name, subject.queue, on_message)
