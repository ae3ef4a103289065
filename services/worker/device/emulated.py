"""An executor without a model: its forward pass takes as long as a latency profile says.

Everything around it is real: the same core, pages, mover, arena and messages. A page holds a word
for each token of its block, which depends on all tokens before (see `chain`), as often as fills
what its KV would take: once in a small page, all over a page of true size, which so costs what a
model's does wherever it goes. History is looked at before it is gone on from: a page that is
not the turn's own ends the worker.
"""

import time
from collections.abc import Callable
from hashlib import shake_128
from pathlib import Path
from zlib import crc32

import numpy as np

from services.worker.core.adapters.image import NO_LINE
from services.worker.core.step import ImageEntry, Ints, RowSampling, Sampled, StepPlan, StepResult
from services.worker.device.base.executor import Finished, ModelInfo, RecordsNothing
from services.worker.device.base.tables import BlockTables, Failures
from services.worker.device.chain import Words as ChainWords
from services.worker.device.chain import are_words, next_words, words_of
from services.worker.device.copying.copies import HostCopier, PageCopier
from services.worker.device.copying.gate import ADAPTER_STALL_NS, PageGate
from services.worker.device.copying.image_builder import ImageBuilder
from services.worker.device.copying.mover import KvMover, Moved
from services.worker.device.copying.slow_link import SlowLink
from services.worker.device.grammar import Grammars, Masks, Vocabulary, Words, allows, asked_of
from services.worker.models.demo_model import VOCAB
from shared.adapters.layout import layout_image
from shared.arena import Bytes
from shared.blocks import BLOCK_TOKENS
from shared.ids import TurnId
from shared.profiles import ELEMENT_BYTES, LatencyProfile
from shared.wire.messages import AdapterRef, LoraCard, LoraTarget, TokenLogprobs

PANGRAM = b"The quick brown fox jumps over the lazy dog. "
END_OF_TURN = 258  # of the demo model's byte-level tokenizer, which speaks for every profile
REPLY_TOKENS = 3 * len(PANGRAM)
PAGE_BYTES = BLOCK_TOKENS * ELEMENT_BYTES  # of a small page
LORA_WIDTH = 4


class EmulatedExecutor(RecordsNothing):
    """Takes the profile's time; says the same sentence whatever it is asked.

    Args:
        source: folder with the tokenizer and chat template to speak with.
        on_moved: see `KvMover`.
        pool_bytes: memory for pages of the size that the profile's model has, at most as many as
            its device would hold; None: small pages, all of these.
        link_bytes_per_s: of loads into the pool; 0: as fast as memory is.
    """

    def __init__(
        self,
        profile: LatencyProfile,
        source: str,
        on_moved: Callable[[Moved], None],
        pool_bytes: int | None = None,
        link_bytes_per_s: float = 0.0,
    ) -> None:
        self._profile = profile
        self.prefill_tokens_max = 2048
        num_pages = profile.num_kv_tokens // BLOCK_TOKENS * profile.num_layers
        page_bytes, fingerprint = PAGE_BYTES, f"emulated-{profile.name}-2"
        if pool_bytes is not None:
            page_bytes = profile.page_bytes(BLOCK_TOKENS)
            num_pages = min(num_pages, pool_bytes // page_bytes)
            fingerprint = f"{fingerprint}-{page_bytes}"  # blocks of another size are others
        self.info = ModelInfo(
            model_id=profile.name,
            source=source,
            fingerprint=fingerprint,
            max_model_len=profile.max_model_len,
            num_layers=profile.num_layers,
            page_bytes=page_bytes,
            stored_page_bytes=page_bytes,
            num_pages=num_pages,
            vocab_size=VOCAB,
            end_token_ids=frozenset([END_OF_TURN]),
            block_tokens=BLOCK_TOKENS,
            is_emulated=True,
            lora=_lora_card(profile, page_bytes),
        )
        shape = (num_pages, BLOCK_TOKENS, page_bytes // PAGE_BYTES)
        self._pool = np.full(shape, 0, np.uint32)  # there now, not when a pass first writes a page
        self._tables = BlockTables(profile.num_layers)
        self._failures = Failures()
        self._computed: dict[int, tuple[TurnId, int]] = {}  # by line: up to which position
        self._adapters: dict[int, ImageEntry] = {}  # by line
        self._bytes = self._pool.reshape(num_pages, -1).view(np.uint8)
        copier: PageCopier = HostCopier(self._bytes)
        if link_bytes_per_s:
            copier = SlowLink(copier, link_bytes_per_s)
        gate = PageGate(num_pages)
        self.mover = KvMover(copier, gate, on_moved)
        self.builder = ImageBuilder(self._make_image, copier, gate, on_moved)
        self.grammars = Grammars(Vocabulary(source, VOCAB, self.info.end_token_ids))

    def launch(self, plan: StepPlan) -> Finished:
        started_ns = time.monotonic_ns()
        self._tables.enter(plan.entries)
        entered: list[int] = plan.entries.slots[plan.entries.blocks == 0].tolist()
        for slot in entered:  # a turn begins there, maybe again
            self._computed.pop(slot, None)
        result = StepResult([None] * plan.num_rows, stall_ns=[0] * self.info.num_layers)
        result.failed = self._failures.void(plan)
        for index, awaited in plan.awaited.items():
            if index in result.failed:
                continue
            # It waits for all of them before it takes any time.
            left_ns = started_ns + plan.due_in_ns(index, 1, 1) - time.monotonic_ns()
            if not self._has(awaited, left_ns, result):
                result.failed.add(index)
        self._adapters.update({image.line: image for image in plan.images})
        lines: list[int] = plan.adapters.tolist()
        lasts = self._compute(plan, result.failed)
        for line in {*lines} - {NO_LINE}:
            if self._has(plan.streams.get(line, []), ADAPTER_STALL_NS, result):
                self._check_image(self._adapters[line])
            else:
                result.failed.update(row for row, own in enumerate(lines) if own == line)
        masks = self._masks(plan, result.failed)
        result.failed |= masks.late
        result.refused = masks.failed
        void = result.failed | result.refused.keys()
        for index, (sampling, line) in enumerate(zip(plan.sampling, lines, strict=True)):
            if sampling is not None and index not in void:
                adapter = "" if line == NO_LINE else self._adapters[line].adapter_hash
                result.sampled[index] = _say(
                    sampling, adapter, masks.ready.get(index), int(lasts[index])
                )
        self._tables.keep(plan, result.sampled)
        self._failures.keep(plan, result.failed)
        self._take_time(plan, started_ns)
        result.started_at_ns = started_ns
        result.duration_ns = time.monotonic_ns() - started_ns
        return Finished(result)

    @property
    def assist_tokens(self) -> int:
        return 0

    def check_device(self) -> None:
        self.mover.check()

    def close(self) -> None:
        self.grammars.close()
        self.builder.close()
        self.mover.close()

    def _masks(self, plan: StepPlan, failed: set[int]) -> Masks:
        """What grammars allow each row that is held to one."""
        sampled = plan.sampled_rows(self._tables.tokens(plan))
        rows = [row for row in sampled if row[0] not in failed]
        masks = self.grammars.begin(asked_of(plan, rows))
        masks.wait()
        return masks

    def _make_image(self, adapter: AdapterRef, folder: Path) -> Bytes:
        """Pages that say which adapter they are of, all over."""
        info = self.info
        assert info.lora is not None
        num_blocks = layout_image(info.lora, adapter.ranks).num_blocks
        page = np.tile(_image_mark(adapter.adapter_hash), info.page_bytes // PAGE_BYTES)
        return np.broadcast_to(page, (info.num_layers, num_blocks, info.page_bytes))

    def _check_image(self, image: ImageEntry) -> None:
        """Look at both ends of the pages: to read all of them in every step would take longer than
        the step is to.
        """
        wanted = _image_mark(image.adapter_hash)
        for part in (slice(0, PAGE_BYTES), slice(-PAGE_BYTES, None)):
            found = self._bytes[:, part][image.pages]
            assert (found == wanted).all(), "a page is not its adapter's"

    def _has(self, awaited: list[list[int]], timeout_ns: int, result: StepResult) -> bool:
        """Wait for pages, layer by layer, so long at most in all."""
        for layer, pages in enumerate(awaited):
            before_ns = time.monotonic_ns()
            has_come = self.mover.gate.wait(pages, timeout_ns)
            waited_ns = time.monotonic_ns() - before_ns
            result.stall_ns[layer] += waited_ns
            result.stall_at_ns.setdefault(layer, before_ns)
            timeout_ns -= waited_ns
            if not has_come:
                return False
        return True

    def _compute(self, plan: StepPlan, failed: set[int]) -> ChainWords:
        """Write the words of the new tokens. Answers the last one of each row: uint32 [R]."""
        tokens, starts = self._tables.tokens(plan), plan.context_lens - plan.lengths
        first_words = self._first_words(plan)
        before = self._words(plan.slots, starts - 1)  # of a row without history: anything
        is_new = starts == 0
        are_alike: list[bool] = (is_new | (before == before[0]).all(0)).tolist()
        lasts = np.where(is_new, first_words, before[0])
        words = next_words(np.repeat(lasts, plan.lengths), tokens)
        slots, ends = plan.slots.tolist(), plan.context_lens.tolist()
        rows = zip(plan.turn_ids, slots, starts.tolist(), ends, strict=True)
        for row, (turn_id, slot, first, last) in enumerate(rows):
            if row in failed:
                continue
            assert are_alike[row], "a page is not its turn's: layers do not agree"
            if first and self._computed.get(slot) != (turn_id, first):
                self._check_history(slot, first, int(first_words[row]))
            self._computed[slot] = (turn_id, last)
            if last - first > 1:
                part = slice(*plan.query_starts[row : row + 2].tolist())
                words[part] = words_of(int(lasts[row]), tokens[part])
        positions = plan.positions()
        pages = self._tables.pages[
            :, np.repeat(plan.slots, plan.lengths), positions // BLOCK_TOKENS
        ]
        self._pool[pages, positions % BLOCK_TOKENS] = words[:, None]
        return words[plan.query_starts[1:] - 1]

    def _first_words(self, plan: StepPlan) -> ChainWords:
        """uint32 [R]: what stands before the first token of each row: KV of one adapter is none of
        another.
        """
        lines: list[int] = plan.adapters.tolist()
        names = (b"" if n == NO_LINE else self._adapters[n].adapter_hash.encode() for n in lines)
        return np.array(list(map(crc32, names)), np.uint32)

    def _words(self, slots: Ints, positions: Ints) -> ChainWords:
        """uint32 [layers, n]: at these positions of these lines, where each token's part begins."""
        pages = self._tables.pages[:, slots, positions // BLOCK_TOKENS]
        words: ChainWords = self._pool[pages, positions % BLOCK_TOKENS, 0]
        return words

    def _check_history(self, slot: int, num_tokens: int, first_word: int) -> None:
        """Look at both ends of what each token has: more would take longer than the pass is to."""
        blocks = -(-num_tokens // BLOCK_TOKENS)
        pages = self._tables.pages[:, slot, :blocks]
        for end in {0, self._pool.shape[2] - 1}:
            words = self._pool[pages, :, end].reshape(len(pages), -1)[:, :num_tokens]
            assert are_words(words, first_word, VOCAB), "a page is not its turn's"

    def _take_time(self, plan: StepPlan, started_ns: int) -> None:
        profile = self._profile
        context = int(plan.context_lens.sum())
        num_awaited = sum(len(pages) for awaited in plan.awaited.values() for pages in awaited)
        history = num_awaited / self.info.num_layers * BLOCK_TOKENS
        load_ms = history * profile.kv_bytes_per_token / (profile.kv_read_gb_per_s * 1e6)
        step_ms = profile.step_ms(plan.num_prefill_tokens, plan.num_decodes, context)
        # Layers stream in behind the pass: it takes as long as the slower of the two.
        left_s = max(step_ms, load_ms) / 1e3 - (time.monotonic_ns() - started_ns) / 1e9
        if left_s > 0:
            time.sleep(left_s)


def _lora_card(profile: LatencyProfile, page_bytes: int) -> LoraCard:
    """What adapters of an emulated model look like: the least that fills pages."""
    targets = [LoraTarget(name="emulated", num_in=LORA_WIDTH, num_out=LORA_WIDTH)]
    return LoraCard(
        layers_path="layers",
        num_layers=profile.num_layers,
        element_bytes=4,
        page_bytes=page_bytes,
        targets=targets,
    )


def _image_mark(adapter_hash: str) -> Bytes:
    """What fills an adapter's pages: uint8 ``[PAGE_BYTES]``."""
    return np.frombuffer(shake_128(adapter_hash.encode()).digest(PAGE_BYTES), np.uint8)


def _sentence(adapter_hash: str) -> bytes:
    """What the model says over and over, on an adapter or without."""
    return f"I am {adapter_hash[:8]}. ".encode() if adapter_hash else PANGRAM


def _say(row: RowSampling, adapter_hash: str, mask: Words | None, word: int) -> Sampled:
    """The next letter. Its log-probability depends on all that was read: so does all that a model
    says.
    """
    said, sentence = row.num_generated, _sentence(adapter_hash)
    is_over = said >= REPLY_TOKENS and not row.params.ignore_eos
    token = END_OF_TURN if is_over else sentence[said % len(sentence)]
    if mask is not None:
        token = _shortest(mask)
    if row.params.logprobs is None:
        return Sampled(token)
    logprob = -(word % 1000) / 1000
    return Sampled(token, TokenLogprobs(token=token, logprob=logprob, top=[(token, logprob)]))


def _shortest(mask: Words) -> int:
    """Of what a grammar allows, what leads to its end soonest, as a rule."""
    tokens: list[int] = np.flatnonzero(allows(mask, VOCAB)).tolist()
    closing: list[int] = [END_OF_TURN, *b'"}],:0']
    for token in closing:
        if token in tokens:
            return token
    black: list[int] = [token for token in tokens if token > ord(" ")]
    return (black or tokens)[0]
