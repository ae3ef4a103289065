"""What is drawn: a turn's life, an advisory's, and the house that both are in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """From one to another.

    Attributes:
        is_reply: it answers the one before.
        is_pages: KV goes, and not over NATS.
    """

    sender: str
    receiver: str
    text: str
    is_reply: bool = False
    is_pages: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """What one does by itself; lines end with a newline."""

    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture.

    Attributes:
        told: the same in words, for who does not see it.
        who: from left to right.
        steps: from top to bottom.
    """

    title: str
    told: str
    who: tuple[str, ...]
    steps: tuple[Message | Note, ...]


TURN = Drawing(
    "A turn's life",
    "The client's request arrives at the frontend, which submits it to the scheduler. The "
    "scheduler places it on a worker. The worker pulls the prompt from the frontend and asks "
    "the kvstore for history, which streams in layer by layer while the prompt is computed. "
    "Tokens go to the frontend step by step, and text to the client. New KV is written "
    "behind.",
    ("client", "frontend", "scheduler", "worker", "kvstore"),
    (
        Message("client", "frontend", "1 arrival: a request"),
        Note(
            "frontend",
            "checks, renders, tokenizes what is new;\nRedis: tokens so far, hosts with KV",
        ),
        Message("frontend", "scheduler", "2 submission"),
        Note("scheduler", "3 placement: what the turn\ncosts on each worker"),
        Message("scheduler", "worker", "start, attempt n"),
        Message("worker", "frontend", "4 prompt, unless it was short enough to come along: pull"),
        Message("frontend", "worker", "tokens", is_reply=True),
        Message("worker", "kvstore", "5 lookup: stage it"),
        Message("kvstore", "worker", "when each layer comes", is_reply=True),
        Note("worker", "6 fetch, or compute, or the\nhead so and the tail so"),
        Message("kvstore", "worker", "history, layer 0 first", is_pages=True),
        Note("worker", "7 prefill: layer i waits for its history\nwhile layer i + 1 is on its way"),
        Note("worker", "8 decode: a token a step\nfor every running turn"),
        Message("worker", "frontend", "tokens, a message a step, past the scheduler"),
        Message("frontend", "client", "9 text, streamed"),
        Message("worker", "kvstore", "10 write-behind", is_pages=True),
        Message("worker", "scheduler", "ended"),
        Note("kvstore", "to disk, then told in Redis;\nlater to the object store"),
        Note("frontend", "the session's record, for the next turn"),
    ),
)
ADVISORY = Drawing(
    "An advisory's life",
    "A client's hint goes from the frontend to the tracker, which merges it with others and "
    "judges how likely the turn is. The scheduler keeps a place on a worker and tells the "
    "worker and the frontends. In time before the turn the worker has the kvstore bring up "
    "the session's KV. The turn then goes from the frontend straight to that worker, and the "
    "advisory ends as used. If no turn comes it expires, and its sender is believed "
    "less.",
    ("client", "frontend", "tracker", "scheduler", "worker", "kvstore"),
    (
        Message("client", "frontend", "a hint: session, arrival"),
        Note("frontend", "may its sender?\nRedis: hosts with KV"),
        Message("frontend", "tracker", "advisory"),
        Note(
            "tracker",
            "expected: merged with others of its session;\nhow likely, and how soon, is learned",
        ),
        Message("tracker", "scheduler", "expect"),
        Message("scheduler", "tracker", "placed", is_reply=True),
        Message("scheduler", "worker", "prefetch"),
        Message("scheduler", "frontend", "the place"),
        Note("worker", "waits until it is time: twice as\nlong before as bringing up takes"),
        Message("worker", "kvstore", "stage"),
        Message("kvstore", "worker", "KV, layer 0 first", is_pages=True),
        Message("client", "frontend", "the turn"),
        Message("frontend", "worker", "start, attempt 1, straight to the place"),
        Message("frontend", "scheduler", "submission, as of any turn"),
        Message("scheduler", "tracker", "it arrived"),
        Note(
            "tracker",
            "used, or late: before there was a place.\nNo turn: expired, overtaken or invalidated",
        ),
        Message("tracker", "frontend", "verdict on its sender"),
    ),
)
HOUSE = Drawing(
    "A house",
    "A turn goes from the client to the frontend, as metadata to the scheduler, and from "
    "there to a worker, which pulls the prompt from the frontend and sends tokens back to it. "
    "Worker and kvstore share memory. A hint goes from the frontend to the tracker, to the "
    "scheduler, and as a prefetch to the worker.",
    ("client", "frontend", "tracker", "scheduler", "worker", "kvstore"),
    (
        Message("client", "frontend", "a hint"),
        Message("frontend", "tracker", "a advisory"),
        Message("tracker", "scheduler", "b expect"),
        Message("scheduler", "worker", "c prefetch"),
        Message("kvstore", "worker", "d KV", is_pages=True),
        Message("client", "frontend", "a turn"),
        Message("frontend", "scheduler", "1 metadata"),
        Message("scheduler", "worker", "2 start"),
        Message("worker", "frontend", "3 prompt"),
        Message("kvstore", "worker", "4 history", is_pages=True),
        Message("worker", "frontend", "5 tokens"),
        Message("frontend", "client", "text"),
        Message("worker", "kvstore", "6 new KV", is_pages=True),
    ),
)
