"""Models to measure with: the one that is named, or random weights of a wanted size, for speed does
not depend on what weights say.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 0
MODELS_DIR = Path("~/.symphony/models").expanduser()
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a measurement needs to know of a model.

    Attributes:
        dtype: of its weights, in torch's words.
        kv_width: numbers of one token's keys in one layer.
    """

    dtype: str
    vocab_size: int
    num_layers: int
    kv_width: int

    @property
    def token_bytes(self) -> int:
        """KV of one token in all layers."""
        return 2 * self.num_layers * self.kv_width * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """A Llama to be made of random weights.

    Attributes:
        inner: width of its gated layers.
    """

    name: str
    num_layers: int
    hidden: int
    inner: int
    num_heads: int
    vocab_size: int

    def config(self) -> Any:
        """transformers' own, for long contexts, without an end token."""
        from transformers import LlamaConfig

        return LlamaConfig(
            hidden_size=self.hidden,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_heads,
            intermediate_size=self.inner,
            vocab_size=self.vocab_size,
            max_position_embeddings=8192,
            tie_word_embeddings=False,
            eos_token_id=None,
            bos_token_id=None,
        )


LLAMA_125M = LlamaShape(
    name="llama-125m", num_layers=12, hidden=768, inner=2048, num_heads=12, vocab_size=32000
)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which model is measured."""
    parser.add_argument(
        "--model", default="", help="name, folder, GGUF file or hub id; none: random weights, 125 M"
    )
    parser.add_argument("--models-dir", type=Path, default=MODELS_DIR)


def model_source(args: argparse.Namespace, dtype: str) -> str:
    """Folder or hub id of the model that the options name.

    Args:
        dtype: of random weights, ``bfloat16`` or ``float32``.

    Raises:
        SymphonyError: there is no such model.
    """
    if not args.model:
        return str(make_llama_125m(args.models_dir, dtype))
    from cli.models.prepare import check_model, prepare_model

    check_model(args.model)
    return prepare_model(args.model, args.models_dir, lambda text: print(text, file=sys.stderr))


def shape_of(source: str) -> Shape:
    """The shape of a model, from its config."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source).get_text_config()
    head_dim = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return Shape(
        dtype=str(config.dtype).removeprefix("torch."),
        vocab_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        kv_width=num_heads * head_dim,
    )


def make_llama_125m(folder: Path, dtype: str) -> Path:
    """A Llama of about 125 M parameters (12 layers, hidden 768) unless `folder` has it already.

    Args:
        dtype: ``bfloat16`` or ``float32``.
    """
    target = folder / f"{LLAMA_125M.name}-{dtype}"
    if (target / "config.json").is_file():
        return target
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(SEED)
    config = LLAMA_125M.config()
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    building = target.with_name(target.name + ".building")
    model.save_pretrained(building)
    building.rename(target)
    return target
