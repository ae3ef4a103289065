"""The only access to NATS: typed publish, subscribe, serve, request; readiness, reconnect, drain.

The bus knows nothing of any service. Everything pending is bounded: a subscription that falls
behind drops and counts, a serving subject runs at most `concurrency_max` handlers at once.
"""

from shared.bus.asking import Sender
from shared.bus.serving import RawMessage, Receiver

__all__ = ["Bus", "RawMessage"]


class Bus(Sender, Receiver):
    """A connection to NATS that reconnects for ever.

    Create one with `Bus.connect`; end it with `drain`, after which nothing is delivered.
    """
