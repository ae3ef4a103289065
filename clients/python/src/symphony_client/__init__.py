"""Client of a Symphony deployment, for agent frameworks: says whose turn comes next, so that its KV
cache is prefetched.
"""

from symphony_client.announcer import Announcer
from symphony_client.client import AsyncSymphonyClient, SymphonyClient
from symphony_client.core.pending import Counts
from symphony_client.errors import (
    BadAnswer,
    InvalidRequest,
    NotFound,
    SymphonyError,
    Throttled,
    Unauthorized,
    Unavailable,
    Unreachable,
    Unsupported,
)
from symphony_client.messages import Advisory, AdvisoryState, Forgotten, Session
from symphony_client.settings import Settings
from symphony_client.transports import AsyncHttpTransport, HttpTransport, NatsTransport
from symphony_client.workflow import Agent, Workflow

__all__ = [
    "Advisory",
    "AdvisoryState",
    "Agent",
    "Announcer",
    "AsyncHttpTransport",
    "AsyncSymphonyClient",
    "BadAnswer",
    "Counts",
    "Forgotten",
    "HttpTransport",
    "InvalidRequest",
    "NatsTransport",
    "NotFound",
    "Session",
    "Settings",
    "SymphonyClient",
    "SymphonyError",
    "Throttled",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "Unsupported",
    "Workflow",
]
