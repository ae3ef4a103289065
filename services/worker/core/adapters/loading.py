"""One image's way to the device: held, asked for, loaded or built, and whether a pass may begin
before all of it is here.
"""

from dataclasses import dataclass

from services.worker.core.adapters.image import AdapterUse, Image
from services.worker.core.adapters.streaming import FirstPass, Pace, StartModes, wait_ns
from services.worker.core.effects import BuildImage, Effect, StageImage
from services.worker.core.engine_limits import Estimates
from services.worker.core.kv.residency import Residency
from services.worker.core.kv.write_behind import WriteBehind
from shared.blocks import BlockKey, image_keys, image_root
from shared.wire.messages import AdapterRef

STAGE_PATIENCE_NS = 2_000_000_000


@dataclass(slots=True)
class ImageLoading:
    """Attributes:
    page_bytes: of one pool page.
    start_modes: how turns may begin on an adapter of which not all is here.
    is_stored: pages are stored below as they are. Else images are built from files each time: they
        are no KV, and nothing of them may be rounded.
    """

    residency: Residency
    write_behind: WriteBehind
    estimates: Estimates
    start_modes: StartModes
    fingerprint: str
    page_bytes: int
    is_stored: bool = True

    def keys(self, adapter: AdapterRef, num_blocks: int) -> list[BlockKey]:
        """Of its image's blocks."""
        return image_keys(self.fingerprint, adapter.adapter_hash, num_blocks)

    def look_up(self, image: Image, now_ns: int) -> list[Effect]:
        """Hold what is here, ask for the rest."""
        chain = image.chain
        self.residency.want(chain)
        image.since_ns = now_ns
        self._note_pace(image, now_ns, is_from_disk=True)  # for all that is known of others' loads
        if not chain.missing:
            return []
        if self.is_stored and self.write_behind.is_connected and not image.num_failures:
            asked = self.residency.ask(chain, now_ns + STAGE_PATIENCE_NS)
            return [StageImage(image.number, image.adapter.adapter_hash, asked)]
        image.must_build = True
        return []

    def fetch(self, image: Image, now_ns: int) -> list[Effect]:
        """Take the pages that are missing, and have them filled."""
        if (staged := image.chain.staged) is not None:
            effects = self.residency.load(image.chain)
            self._note_pace(image, now_ns, is_from_disk=staged.num_from_disk > 0)
            is_there = not staged.num_from_disk and staged.num_blocks == image.num_blocks
            image.source = staged if is_there and image.chain.coming else None
            return effects
        return self._build(image) if image.must_build else []

    def may_begin(self, use: AdapterUse, image: Image, first: FirstPass, now_ns: int) -> bool:
        """Whether a turn may begin before all of it is here. What is built comes at once."""
        if image.built or image.chain.missing or self.residency.is_late(image.chain):
            return False
        modes, source, stager = self.start_modes, image.source, self.residency.stager
        lacking = [len(pages) for pages in self.residency.awaited(image.chain)]
        num_lacking = sum(lacking)
        link_ns = self.estimates.load_ns(self.page_bytes)
        page_ns = max(link_ns, image.pace.page_ns(num_lacking, now_ns))
        num_ahead = stager.num_demanded - num_lacking
        can_stream = modes.can_stream and first.duration_ns > 0
        pass_ns = first.duration_ns if can_stream else 0
        until_ns = wait_ns(lacking, num_ahead, page_ns, pass_ns)
        if can_stream and until_ns <= 0:
            return True
        if source is None or not (use.can_be_assisted and stager.holds(source.ticket)):
            return False
        if first.num_tokens > modes.assist_tokens:
            return False
        can_assist = modes.can_assist(first.num_tokens, until_ns, was_refused=use.was_refused)
        use.was_refused |= not can_assist
        image.is_assisted |= can_assist
        return can_assist

    def has_remains(self, image: Image) -> bool:
        """Whether loads are under way into blocks that it let go."""
        blocks = map(self.residency.pool.blocks.get, image.chain.missing)
        return any(block is not None and (block.loading or block.lost) for block in blocks)

    def settle(self, image: Image) -> bool:
        """Forget what has come; False if some of it will not."""
        if not self.residency.settle(image.chain):
            return False
        if image.built and not image.chain.coming:
            self.write(image)
        return True

    def write(self, image: Image) -> None:
        """What was built is to have a copy below."""
        built, image.built, image.must_build = {*map(id, image.built)}, [], False
        if not self.is_stored:
            return
        chain = image.chain
        for index, block in enumerate(chain.blocks):
            if id(block) in built and block.backed:  # else its write was taken up meanwhile
                before = chain.blocks[index - 1] if index else None
                root = image_root(self.fingerprint, image.adapter.adapter_hash)
                parent = chain.keys[index - 1] if index else root
                self.write_behind.try_again(block, before, parent, [index])

    def _note_pace(self, image: Image, now_ns: int, *, is_from_disk: bool) -> None:
        num_lacking = sum(map(len, self.residency.awaited(image.chain)))
        image.source, image.is_assisted = None, False
        image.pace = Pace(now_ns, num_lacking, is_from_disk=is_from_disk)

    def _build(self, image: Image) -> list[Effect]:
        """Have the missing blocks made from the adapter's files."""
        filled = self.residency.fill(image.chain)
        if not filled:
            return []  # remains of an earlier one are in its way for a moment
        first = image.num_blocks - len(filled)
        image.built = [block for block, _ in filled]
        places = [(layer, first + at) for at, (_, layers) in enumerate(filled) for layer in layers]
        places.sort()  # low layers first
        table = self.residency.pool.table
        rows = [block.row for block in image.chain.blocks]
        pages = [int(table[rows[block], layer]) for layer, block in places]
        return [BuildImage(image.adapter, places, pages)]
