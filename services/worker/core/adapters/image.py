"""An adapter's image, on the device or loading."""

from dataclasses import dataclass, field

from services.worker.core.adapters.streaming import Pace
from services.worker.core.kv.pages import Block
from services.worker.core.kv.residency import Chain
from services.worker.core.kv.staged import Staged
from shared.wire.messages import AdapterRef

NO_LINE = -1


@dataclass(slots=True, eq=False)
class Image:
    """One adapter here.

    Attributes:
        number: names it, and no later image of the same adapter.
        users: uses by turns that want it, the running ones with them: not turn ids, since a turn
            that leaves may be followed by another attempt of the same id.
        line: in the executor's adapter tables while turns run on it.
        is_reported: a plan has passed its pages for that line to the executor.
        must_build: the kvstore does not have all of it.
        built: blocks that are being built.
        is_wished: it is built for a turn that was announced, and released when it is there.
        since_ns: when it was asked for, as far as it is loading.
        pace: of its loads.
        source: the kvstore's answer that the whole image is loaded from, as far as it is.
        is_assisted: its turns run though layers of it are not here in time.
    """

    number: int
    adapter: AdapterRef
    num_blocks: int
    chain: Chain
    users: set[object] = field(default_factory=set)
    running: set[object] = field(default_factory=set)
    line: int = NO_LINE
    is_reported: bool = False
    must_build: bool = False
    built: list[Block] = field(default_factory=list)
    is_wished: bool = False
    num_failures: int = 0
    since_ns: int = 0
    pace: Pace = field(default_factory=Pace)
    source: Staged | None = None
    is_assisted: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether all of it is here."""
        return not (self.chain.missing or self.chain.coming)
