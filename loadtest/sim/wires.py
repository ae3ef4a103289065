"""The bus for simulated parties that are no services: whole messages, by the subject table."""

from collections.abc import Callable
from functools import partial
from typing import Any

from loadtest.sim.network import Message, Network, Peer, Weather
from loadtest.sim.timeline import SECOND
from shared.bus.connection import ERROR_HEADER
from shared.errors import MalformedMessage, NobodyListens, PeerUnavailable, SymphonyError
from shared.wire.error_wire import error_from_wire, error_to_wire
from shared.wire.messages import decode, encode
from shared.wire.subjects import Subject

__all__ = ["Peer", "Reply", "Weather", "Wires"]

Reply = Callable[[Any], None]
Handler = Callable[[Any, Reply], None]


class Wires(Network):
    """The network, and typed messages on it.

    Attributes:
        pack, unpack: a message without a reply to and from what the network transports.
    """

    pack: Callable[[Any], Any] = staticmethod(encode)
    unpack: Callable[[Any, Any], Any] = staticmethod(decode)

    def listen(
        self, process: Peer, subject: Subject[Any, Any], handler: Handler, ident: str = ""
    ) -> None:
        """Listen, for this life. `handler` is given the message and how to reply."""

        def deliver(message: Message) -> None:
            life = process.life
            try:
                request = self.unpack(subject.request, message.data)
            except MalformedMessage:
                return

            def reply(answer: object) -> None:
                if not message.reply or not process.is_up or process.life != life:
                    return
                if isinstance(answer, SymphonyError):
                    data, headers = error_to_wire(answer), {ERROR_HEADER: answer.code}
                    said = Message(message.reply, encode(data), headers=headers)
                else:
                    said = Message(message.reply, encode(answer))
                self.publish(process, said)

            handler(request, reply)

        self.subscribe(process, _name(subject, ident), deliver, subject.queue)

    def send(
        self, process: Peer, subject: Subject[Any, Any], message: object, ident: str = ""
    ) -> None:
        """Send to everybody who listens when it gets there."""
        self.publish(process, Message(_name(subject, ident), self.pack(message)))

    def request(
        self,
        process: Peer,
        subject: Subject[Any, Any],
        message: object,
        on_reply: Reply,
        on_error: Callable[[SymphonyError], None],
        *,
        ident: str = "",
        timeout_ns: int = 5 * SECOND,
    ) -> None:
        """Ask; exactly one of `on_reply` and `on_error` is called, in this life of the asker."""
        is_over = False

        def settle(answer: object) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            self.unsubscribe(inbox)
            if isinstance(answer, SymphonyError):
                on_error(answer)
            else:
                on_reply(answer)

        def deliver(reply: Message) -> None:
            headers = reply.headers or {}
            if "Status" in headers:
                settle(NobodyListens("no process listens"))
            elif ERROR_HEADER in headers:
                settle(error_from_wire(reply.data))
            else:
                try:
                    settle(decode(subject.reply, reply.data))
                except MalformedMessage as error:
                    settle(error)

        inbox = self.subscribe(process, self.new_inbox(), deliver)
        process.later(timeout_ns, partial(settle, PeerUnavailable("no answer")))
        name = _name(subject, ident)
        self.publish(process, Message(name, encode(message), inbox.subject))


def _name(subject: Subject[Any, Any], ident: str) -> str:
    return subject.name(ident) if "*" in subject.pattern else subject.pattern
