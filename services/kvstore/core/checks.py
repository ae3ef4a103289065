"""What a commit must be before any of it is taken over."""

from services.kvstore.core.base.events import Commit, NewBlock
from services.kvstore.core.tiers.workers import OpenWorker
from shared.blocks import BLOCK_TOKENS, child_key
from shared.errors import InvalidRequest


def check_commit(event: Commit, worker: OpenWorker) -> None:
    """Raises:
    InvalidRequest: the model was not announced, a list has the wrong length, a page is not leased
        to the worker or named twice, or a key is not that of its tokens.
    """
    shape = worker.shapes.get(event.fingerprint)
    if shape is None or shape[1] != event.page_bytes:
        raise InvalidRequest("the model of this commit was not opened", "fingerprint")
    pages = [page for block in event.blocks for page in block.pages]
    num_meant = len(worker.meant(event.page_bytes, pages, event.last_lease))
    if len(set(pages)) != len(pages) or num_meant != len(pages):
        raise InvalidRequest("a page is not leased, or is named twice", "pages")
    for block in event.blocks:
        _check_block(block, num_layers=shape[0])


def _check_block(block: NewBlock, num_layers: int) -> None:
    if len(block.pages) != num_layers or len(block.checksums) != num_layers:
        raise InvalidRequest(f"a block takes {num_layers} pages and checksums", "pages")
    if not 0 < len(block.tokens) <= BLOCK_TOKENS:
        raise InvalidRequest(f"a block has 1 to {BLOCK_TOKENS} tokens", "tokens")
    if child_key(block.parent, block.tokens) != block.key:
        raise InvalidRequest("the key is not that of these tokens after this parent", "key")
