"""A decoder ready to run: its module, KV layout and limits."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from transformers import GenerationConfig

from kernels.sgmv import Site
from services.worker.core.engine_limits import StoredDtype
from services.worker.device.base.executor import ModelInfo
from services.worker.device.base.step import LayerProbe, StepContext, running
from services.worker.device.copying.int8_pages import Int8Pages
from services.worker.device.decoder.attention import UnsupportedModelError, note_positions
from services.worker.device.decoder.embeddings import embed_by_row
from services.worker.device.decoder.module_forward import ModuleForward
from services.worker.device.decoder.rotary import freeze_rotaries
from services.worker.device.lora.additions import LoraAddition, make_additions
from services.worker.device.lora.sites import inner_sites, lora_card
from services.worker.models.generation import end_token_ids, sampling_defaults
from shared.adapters.image import build_image
from shared.adapters.layout import layout_image
from shared.arena import Bytes
from shared.blocks import BLOCK_TOKENS
from shared.wire.messages import AdapterRef, LoraCard, SamplingDefaults


class Forward(Protocol):
    """Computes a model's steps."""

    def __call__(
        self, step: StepContext, tokens: torch.Tensor, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        """Logits ``[wanted, vocab]`` of a step's new tokens, whose KV is stored in the pool.

        Args:
            tokens: int64 ``[T]``.
            wanted: numbers of the tokens whose logits are computed; None: all.
        """
        ...

    def take_adapters(self, additions: Mapping[nn.Module, LoraAddition]) -> None:
        """Let adapters of steps add to the outputs of these modules from now on."""
        ...

    def sum_outputs(
        self, modules: Set[nn.Module], sum_ranks: Callable[[torch.Tensor], None]
    ) -> None:
        """Sum the outputs of these modules over the ranks from now on, with what adapters have
        added to them: called behind `take_adapters`.

        Args:
            sum_ranks: in place.
        """
        ...


@dataclass(slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        module: the transformers model, in eval mode on its device.
        forward: computes its steps.
        num_heads: of the queries, at most.
        num_kv_heads, head_dim: of every layer.
        fingerprint: hash of weights, dtype and KV layout, in the pool and outside of it; root of
            all its block keys.
        short_rope_max: as in `ModelInfo`.
        stored_dtype: of its KV outside of the pool.
        is_invariant: a token's numbers do not depend on what else a step computes.
        lora: what adapters it takes; None: none.
        lora_sites: places in its layers where they add, by the numbers that helpers call them by.
    """

    module: Any
    forward: Forward
    source: str
    dtype: torch.dtype
    device: torch.device
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    vocab_size: int
    end_token_ids: frozenset[int]
    sampling: SamplingDefaults
    fingerprint: str
    short_rope_max: int = 0
    stored_dtype: StoredDtype = "model"
    is_invariant: bool = False
    lora: LoraCard | None = None
    lora_sites: list[Site] = field(default_factory=list)

    @property
    def page_bytes(self) -> int:
        """KV of one block in one layer."""
        return 2 * self.num_kv_heads * BLOCK_TOKENS * self.head_dim * self.dtype.itemsize

    @property
    def stored_form(self) -> Int8Pages | None:
        """What pages are turned into where they are stored; None: they stay as they are."""
        if self.stored_dtype == "model":
            return None
        return Int8Pages(torch.Size((2 * self.num_kv_heads, BLOCK_TOKENS, self.head_dim)))

    @property
    def token_rows(self) -> int:
        """See `KvMover`."""
        return 2 * self.num_kv_heads if self.stored_form is None else 0

    def info(self, model_id: str, num_pages: int) -> ModelInfo:
        """What is served of it, with room for so many pages."""
        form = self.stored_form
        return ModelInfo(
            model_id=model_id,
            source=self.source,
            fingerprint=self.fingerprint,
            max_model_len=self.max_model_len,
            num_layers=self.num_layers,
            page_bytes=self.page_bytes,
            stored_page_bytes=self.page_bytes if form is None else form.page_bytes,
            num_pages=num_pages,
            vocab_size=self.vocab_size,
            end_token_ids=self.end_token_ids,
            block_tokens=BLOCK_TOKENS,
            sampling=self.sampling,
            lora=self.lora,
            short_rope_max=self.short_rope_max,
        )

    def let_adapters(self) -> None:
        """Take adapters from now on. Its layers must not be replaced any more."""
        self.lora = lora_card(self.module, self.num_layers, self.dtype, self.page_bytes)
        if self.lora is not None:
            self.lora_sites = inner_sites(self.module, self.lora)
            self.forward.take_adapters(make_additions(self.module, self.lora, self.lora_sites))

    def read_image(self, adapter: AdapterRef, folder: Path) -> Bytes:
        """An adapter's image from its files, uint8 ``[num_layers, num_blocks, page_bytes]``.

        Raises:
            AdapterDamaged: the files are not those that were taken in.
        """
        assert self.lora is not None, "a turn's adapter was refused"
        layout = layout_image(self.lora, adapter.ranks)
        return build_image(folder, self.lora, layout, self.lora.dtype, adapter.adapter_hash)

    def make_pool(self, num_pages: int) -> torch.Tensor:
        """``[num_pages, 2, num_kv_heads, block_tokens, head_dim]``: keys and values."""
        shape = (num_pages, 2, self.num_kv_heads, BLOCK_TOKENS, self.head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


def prepare_model(
    module: Any, source: str, generation: GenerationConfig | None = None
) -> LoadedModel:
    """A transformers model, built with our attention, made ready to run where it is. It has no
    fingerprint yet.

    Raises:
        UnsupportedModelError: its attention is of a kind this engine does not compute.
    """
    module.requires_grad_(False).train(False)
    config = module.config.get_text_config()
    max_model_len = _max_model_len(config)
    short_rope_max = freeze_rotaries(module, max_model_len)
    note_positions(module)
    probed = _probe(module, config.num_hidden_layers)
    max_model_len = embed_by_row(module, max_model_len)
    return LoadedModel(
        module=module,
        forward=ModuleForward(module),
        source=source,
        dtype=module.dtype,
        device=module.device,
        num_layers=config.num_hidden_layers,
        num_heads=probed.num_heads,
        num_kv_heads=probed.num_kv_heads,
        head_dim=probed.head_dim,
        max_model_len=max_model_len,
        vocab_size=probed.vocab_size,
        end_token_ids=end_token_ids(generation, config),
        sampling=sampling_defaults(generation),
        fingerprint="",
        short_rope_max=short_rope_max,
    )


class _Probed(NamedTuple):
    """What one pass shows of a model.

    Attributes:
        vocab_size: token ids that it can both read and say.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


def _probe(module: Any, num_layers: int) -> _Probed:
    """KV heads and head dim, as the model's own attention calls show them, and its vocabulary."""
    probe = LayerProbe()
    one = torch.zeros((1, 1), dtype=torch.long, device=module.device)
    with torch.inference_mode(), running(probe):
        logits = module(one, position_ids=one, use_cache=False).logits
    if not probe.layers:
        raise UnsupportedModelError(
            "it computes attention in code of its own, which paged attention cannot replace"
        )
    if sorted(probe.layers) != list(range(num_layers)):
        raise UnsupportedModelError(
            f"{len(probe.layers)} of {num_layers} layers use paged attention; "
            "models with other kinds of layers are not supported"
        )
    layouts = set(probe.layers.values())
    if len(layouts) != 1:
        raise UnsupportedModelError(f"layers of different KV sizes are not supported: {layouts}")
    num_kv_heads, head_dim = layouts.pop()
    num_read = module.get_input_embeddings().weight.shape[0]
    return _Probed(probe.num_heads, num_kv_heads, head_dim, min(logits.shape[-1], num_read))


def _max_model_len(config: Any) -> int:
    for name in ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len"):
        if (value := getattr(config, name, None)) is not None:
            return int(value)
    return 2048
