"""The sequence diagrams of the docs: a turn, an advisory, a job, a deletion."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """An arrow between two participants.

    Attributes:
        is_reply: it answers the message above it.
        is_pages: it moves pages of KV, which do not go over NATS.
    """

    sender: str
    receiver: str
    text: str
    is_reply: bool = False
    is_pages: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """What a participant does by itself; lines end with a newline."""

    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """One diagram.

    Attributes:
        description: the same in words, for screen readers.
        participants: from left to right.
        steps: from top to bottom.
    """

    title: str
    description: str
    participants: tuple[str, ...]
    steps: tuple[Message | Note, ...]


TURN = Drawing(
    "A turn",
    "The client's request arrives at the frontend, which submits it to the scheduler. The "
    "scheduler places it on a worker. The worker pulls the prompt from the frontend and asks "
    "the kvstore for history, which streams in layer by layer while the prompt is computed. "
    "Tokens go to the frontend step by step, and text to the client. The worker writes new KV "
    "to the kvstore in the background.",
    ("client", "frontend", "scheduler", "worker", "kvstore"),
    (
        Message("client", "frontend", "1 arrival: a request"),
        Note(
            "frontend",
            "checks, renders, tokenizes what is new;\nRedis: earlier tokens, hosts with KV",
        ),
        Message("frontend", "scheduler", "2 submission"),
        Note("scheduler", "3 placement: the worker\nwhere the turn costs least"),
        Message("scheduler", "worker", "start, attempt n"),
        Message("worker", "frontend", "4 pull the prompt, unless it came with the start"),
        Message("frontend", "worker", "tokens", is_reply=True),
        Message("worker", "kvstore", "5 lookup: stage these blocks"),
        Message("kvstore", "worker", "when each layer is ready", is_reply=True),
        Note("worker", "fetch or recompute: fetch the\nhead while computing the tail"),
        Message("kvstore", "worker", "history, layer 0 first", is_pages=True),
        Note("worker", "6 admission to the batch"),
        Note("worker", "7 prefill: layer i waits for its history\nwhile layer i + 1 is loading"),
        Note("worker", "8 decode: one token a step\nfor every running turn"),
        Message("worker", "frontend", "tokens, one message a step, past the scheduler"),
        Message("frontend", "client", "9 text, streamed"),
        Message("worker", "kvstore", "10 write-behind", is_pages=True),
        Message("worker", "scheduler", "11 end"),
        Note("kvstore", "writes to disk, then the location to\nRedis; later to the object store"),
        Note("frontend", "stores the session's record in Redis"),
    ),
)
ADVISORY = Drawing(
    "An advisory",
    "A client's advisory goes from the frontend to the tracker, which merges it with others of "
    "its session and estimates how likely the turn is. The scheduler reserves a worker and "
    "notifies the worker and the frontends. In time before the turn the worker has the kvstore "
    "stage the session's KV and prefetches it. The frontend sends the turn straight to that "
    "worker, and the advisory ends as used. If no turn comes, the advisory expires, and its "
    "sender may send fewer.",
    ("client", "frontend", "tracker", "scheduler", "worker", "kvstore"),
    (
        Message("client", "frontend", "session, expected arrival"),
        Note("frontend", "checks the sender's quota;\nRedis: hosts with KV"),
        Message("frontend", "tracker", "advisory"),
        Note("tracker", "merges it with others of its session;\nestimates chance and arrival"),
        Message("tracker", "scheduler", "expect this session"),
        Message("scheduler", "tracker", "placed", is_reply=True),
        Message("scheduler", "worker", "prefetch"),
        Message("scheduler", "frontend", "the reserved worker"),
        Note("worker", "waits until twice the transfer\ntime is left before the turn"),
        Message("worker", "kvstore", "stage"),
        Message("kvstore", "worker", "KV, layer 0 first", is_pages=True),
        Message("client", "frontend", "the turn"),
        Message("frontend", "worker", "start, attempt 1, straight to the reserved worker"),
        Message("frontend", "scheduler", "submission, as for any turn"),
        Message("scheduler", "tracker", "the turn arrived"),
        Note(
            "tracker",
            "ends as used, or as late if no worker was\nreserved yet; without a turn it expires",
        ),
        Message("tracker", "frontend", "outcome of the advisory"),
    ),
)
JOB = Drawing(
    "A job",
    "The client sends an input for a one-shot model to the frontend, which submits a job with a "
    "deadline to the scheduler. The scheduler queues jobs by model and input size and dispatches "
    "a batch within its schedulable window to a worker. The worker pulls the inputs from the "
    "frontend while its previous batch runs, and sends results straight to the frontend. The "
    "scheduler learns from the batch's run time.",
    ("client", "frontend", "scheduler", "worker"),
    (
        Message("client", "frontend", "1 input, target in ms"),
        Note("frontend", "tokenizes text, decodes and\nresizes images"),
        Message("frontend", "scheduler", "2 jobs: ids, deadlines"),
        Note("scheduler", "3 queue per model and input size;\nwaits for the window to open"),
        Note("scheduler", "4 rank table: batch meets a free GPU;\nchooses the batch's jobs"),
        Message("scheduler", "worker", "5 batch: ids, fencing token"),
        Message("worker", "frontend", "6 pull inputs, while the previous batch runs"),
        Message("frontend", "worker", "inputs", is_reply=True),
        Note("worker", "7 runs the batch"),
        Message("worker", "frontend", "8 results"),
        Message("worker", "scheduler", "batch done, run time"),
        Note("scheduler", "corrects the model's\nlatency profile"),
        Message("frontend", "client", "answer; 503 if too late"),
    ),
)
DELETION = Drawing(
    "A deletion",
    "The frontend deletes the session's record and stored responses in Redis and keeps a "
    "tombstone with the keys of its blocks. It invalidates the session's advisory, then has all "
    "workers drop the session's blocks, then all kvstores. When all have answered it removes the "
    "tombstone and answers the client. If one does not answer, the client gets 503 and repeats "
    "the request.",
    ("client", "frontend", "tracker", "worker", "kvstore"),
    (
        Message("client", "frontend", "DELETE /v1/sessions/ID"),
        Note("frontend", "1 Redis, one step: deletes the record\nand responses, adds a tombstone"),
        Message("frontend", "tracker", "2 invalidate the advisory"),
        Message("frontend", "worker", "3 forget, to all workers and frontends"),
        Note("worker", "drops the blocks; its running turns\nbecome private: no cache, no offload"),
        Message("worker", "frontend", "done, no commit is in flight", is_reply=True),
        Message("frontend", "kvstore", "4 delete, to all hosts"),
        Note("kvstore", "memory, disk, object store"),
        Message("kvstore", "frontend", "done, durable", is_reply=True),
        Note("frontend", "5 Redis: removes the tombstone"),
        Message("frontend", "client", "200, or 503: repeat"),
    ),
)
