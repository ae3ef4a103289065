"""Greedy replies of our own engine, on a base and on adapters of it."""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loadtest.in_process_engine import InProcessEngine, Moves
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.model import load_model
from shared.adapters.check import check_adapter
from shared.adapters.layout import layout_image
from shared.adapters.source import AdapterLimits
from shared.blocks import BLOCK_TOKENS
from shared.errors import InvalidRequest
from shared.wire.messages import AdapterRef, LoraCard

PREFILL_TOKENS_MAX = 2048


def replies(
    source: Path,
    folders: Sequence[Path | None],
    prompts: Sequence[list[int]],
    max_tokens: int,
    scratch: Path,
) -> list[list[list[int]]]:
    """Of each adapter, the reply to each prompt: `max_tokens` tokens, whatever is said in between.
    All of them run in one batch.

    Args:
        source: folder of the base.
        folders: of adapters; None: the base itself.
        scratch: an empty folder.

    Raises:
        InvalidRequest: the base takes no adapters, or not these.
    """
    with ThreadPoolExecutor(1) as thread:
        model = thread.submit(load_model, str(source), "cpu", "auto").result()
        if model.lora is None:
            raise InvalidRequest(f"{source}: takes no adapters")
        refs = [None if each is None else _take_in(each, model.lora, scratch) for each in folders]
        longest = max(map(len, prompts)) + max_tokens
        num_blocks = len(folders) * len(prompts) * -(-longest // BLOCK_TOKENS)
        num_blocks += sum(layout_image(model.lora, each.ranks).num_blocks for each in refs if each)
        moves = Moves()
        executor = thread.submit(
            TorchExecutor, model, "m", num_blocks * model.num_layers, moves
        ).result()
        try:
            engine = InProcessEngine(
                executor, thread, PREFILL_TOKENS_MAX, moves=moves, adapters_path=str(scratch)
            )
            turns = [[engine.submit(each, max_tokens, ref) for each in prompts] for ref in refs]
            engine.run()
        finally:
            executor.close()
    return [[turn.generated for turn in row] for row in turns]


def _take_in(folder: Path, card: LoraCard, scratch: Path) -> AdapterRef:
    """Have an adapter where workers look for it."""
    checked = check_adapter(folder, card, AdapterLimits())
    shutil.copytree(folder, scratch / checked.adapter_hash)
    return AdapterRef(
        adapter_hash=checked.adapter_hash,
        name=folder.name,
        lora_rank=checked.lora_rank,
        ranks=checked.ranks,
    )
