"""What carries questions to a deployment: HTTP or NATS."""

from symphony_client.transports.base import AsyncTransport, Transport
from symphony_client.transports.http import AsyncHttpTransport, HttpTransport
from symphony_client.transports.over_nats import NatsTransport

__all__ = ["AsyncHttpTransport", "AsyncTransport", "HttpTransport", "NatsTransport", "Transport"]
