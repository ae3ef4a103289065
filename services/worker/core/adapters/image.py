"""An adapter's image, on the device or loading; which turns use it; which were here lately."""

from dataclasses import dataclass, field

from services.worker.core.adapters.stats import Start
from services.worker.core.adapters.streaming import Pace
from services.worker.core.kv.pages import Block, PagePool
from services.worker.core.kv.residency import Chain
from services.worker.core.kv.staged import Staged
from shared.blocks import BlockKey
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


KNOWN_MAX = 4096  # adapters that reports may name


@dataclass(slots=True)
class KnownAdapters:
    """Adapters that were here lately, the latest used last, each with its image's last block."""

    _last_blocks: dict[str, BlockKey] = field(default_factory=dict)

    def note(self, adapter_hash: str, last: BlockKey) -> None:
        """An adapter is used."""
        self._last_blocks.pop(adapter_hash, None)
        self._last_blocks[adapter_hash] = last
        if len(self._last_blocks) > KNOWN_MAX:
            del self._last_blocks[next(iter(self._last_blocks))]

    def resident(self, pool: PagePool) -> list[str]:
        """Hashes of the adapters that are here as a whole, the latest used first."""
        here = []
        for adapter_hash, last in reversed(self._last_blocks.items()):
            block = pool.blocks.get(last)
            if block is not None and pool.is_whole(block) and not (block.lost or block.loading):
                here.append(adapter_hash)
        return here


@dataclass(slots=True, eq=False)
class AdapterUse:
    """One turn's use of an adapter, or of the base model.

    Attributes:
        ref: the adapter; None: the turn runs on the base model.
        num_image_blocks: of the adapter's image.
        can_be_assisted: helpers can compute all that the adapter adds.
        was_refused: helpers were too slow for it.
        image: the adapter's, here or loading; shared with other turns.
        start: how the turn came to its adapter, as far as is known.
    """

    ref: AdapterRef | None = None
    num_image_blocks: int = 0
    can_be_assisted: bool = False
    image: Image | None = None
    start: Start = "waited"
    was_refused: bool = False
