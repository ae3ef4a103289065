"""The sessions that are there: all alike, but for their names, and so their blocks' keys."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.scale.filling import PAGE_BYTES, fill_disk, session_records, stamp_blocks
from services.kvstore.core import StoredBlock
from services.kvstore.tiers.disk import stored_bytes
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys, pack_keys, root_key
from shared.ids import DEFAULT_TENANT, ModelId, SessionId
from shared.owners import OwnerKey, owner_key
from shared.wire.messages.codec import pack_ints
from shared.wire.sessions import SessionRecord, TextMark, encode_record, session_redis_key

FINGERPRINT = "bench"
SPARE = 1.1  # of the disk's room, so that nothing has to leave for want of it
EXPIRES_S = 7 * 86_400.0
NO_TEXT = TextMark.of("")


@dataclass(frozen=True, slots=True)
class Sessions:
    """So many, of so many blocks each, on so many layers."""

    num: int
    num_blocks: int
    num_layers: int

    @property
    def num_blocks_total(self) -> int:
        return self.num * self.num_blocks

    @property
    def num_pages(self) -> int:
        """Of one."""
        return self.num_blocks * self.num_layers

    @property
    def disk_bytes_max(self) -> int:
        """With room for all."""
        return int(SPARE * self.num_blocks_total * stored_bytes(self.num_layers, PAGE_BYTES))

    def name(self, number: int) -> SessionId:
        return SessionId(f"s{number:07}")

    def owner(self, number: int) -> OwnerKey:
        return owner_key(DEFAULT_TENANT, self.name(number))

    def root(self, number: int) -> BlockKey:
        return root_key(FINGERPRINT, DEFAULT_TENANT, salt=self.name(number))

    def keys(self, number: int) -> list[BlockKey]:
        return chain_keys(self.root(number), range(self.num_blocks * BLOCK_TOKENS))

    def fill(self, folder: Path) -> None:
        """Have all on a disk, used just now."""
        fill_disk(folder, self.disk_bytes_max, self.num_layers, self._on_disk(), int(time.time()))

    def stamp(self, folder: Path, numbers: Iterable[int], used_s: int) -> None:
        """Have it that these were last used then."""
        keys = (key for number in numbers for key in self.keys(number))
        stamp_blocks(folder, self.disk_bytes_max, keys, used_s)

    def stored(self, now_ns: int) -> Iterator[StoredBlock]:
        """As the kvstore's core hears of them at a start."""
        num_bytes = stored_bytes(self.num_layers, PAGE_BYTES)
        for number in range(self.num):
            owner, parent = self.owner(number), self.root(number)
            for key in self.keys(number):
                yield StoredBlock(
                    key, self.num_layers, PAGE_BYTES, num_bytes, now_ns, now_ns, owner, parent
                )
                parent = key

    def records(self) -> Iterator[tuple[str, bytes]]:
        """What frontends have written of each in Redis: name and value."""
        tokens = pack_ints(range(self.num_blocks * BLOCK_TOKENS))
        now_s = time.time()
        for number in range(self.num):
            name = self.name(number)
            record = SessionRecord(
                session_id=name, tenant=DEFAULT_TENANT, model_id=ModelId("bench"),
                fingerprint=FINGERPRINT, tokens=tokens, block_keys=pack_keys(self.keys(number)),
                prompt=NO_TEXT, reply=NO_TEXT, stripped_reply=NO_TEXT,
                num_tokens=self.num_blocks * BLOCK_TOKENS, num_turns=1, last_used=now_s,
                expires=now_s + EXPIRES_S,
            )  # fmt: skip
            yield session_redis_key(DEFAULT_TENANT, name), encode_record(record)

    def _on_disk(self) -> Iterator[tuple[BlockKey, bytes]]:
        for number in range(self.num):
            yield from session_records(
                self.root(number), self.owner(number), self.num_blocks, self.num_layers,
                number * self.num_blocks,
            )  # fmt: skip
