"""A GGUF file as a folder in transformers' format: dequantized once, so that everything else of the
house need not know of GGUF.

Runs as a process of its own (``python -m cli.models.gguf FILE FOLDER``): what it loads is gone when
it ends, and a file that breaks it breaks nothing else.
"""

import sys
from pathlib import Path
from typing import Any

from shared.errors import ConfigError

# How byte-level BPE cuts a text into words before merging, by the file's `tokenizer.ggml.pre`.
# transformers reads the vocabulary and takes GPT-2's rule for all of them, under which some texts
# would be cut other than at the model's training.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORD_PATTERNS = {
    "llama-bpe": _WORDS.format(digits="{1,3}"),
    "llama3": _WORDS.format(digits="{1,3}"),
    "qwen2": _WORDS.format(digits=""),
}
SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r"})
GPT2_RULE = frozenset({"", "default", "gpt-2", "gpt2"})
END_TOKENS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
FLOAT32_FILE = 0  # `general.file_type` of a file without any smaller type


def convert(source: Path, folder: Path) -> list[str]:
    """Write the model of `source` into the empty `folder`; remarks for the user.

    Weights become bfloat16, those of a 32-bit file float32.

    Raises:
        ConfigError: not a GGUF file, or of a kind that transformers does not read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    fields = _fields(source)
    is_float32 = fields.get("general.file_type") == FLOAT32_FILE
    where: dict[str, Any] = {"gguf_file": source.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            dtype=torch.float32 if is_float32 else torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
            **where,
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, NotImplementedError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{source}: transformers cannot read it: {first_line}") from error
    remarks = _mend_words(tokenizer, fields)
    _mend_ends(model, fields)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # it is a plain model now
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    return remarks


def _fields(source: Path) -> dict[str, Any]:
    """What the file says of itself, without its tables and tensors."""
    from gguf import GGUFReader

    try:
        fields = GGUFReader(source).fields
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise ConfigError(f"{source}: not a GGUF file: {error}") from None
    wanted = ("general.file_type", "tokenizer.ggml.pre", "tokenizer.ggml.model", *END_TOKENS)
    return {name: fields[name].contents() for name in wanted if name in fields}


def _mend_words(tokenizer: Any, fields: dict[str, Any]) -> list[str]:
    """Have byte-level BPE cut words as the file says."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

    rule = str(fields.get("tokenizer.ggml.pre", ""))
    if fields.get("tokenizer.ggml.model") != "gpt2" or rule in GPT2_RULE:
        return []
    if rule in WORD_PATTERNS:
        cut: PreTokenizer = Split(Regex(WORD_PATTERNS[rule]), behavior="isolated")
        to_bytes = ByteLevel(add_prefix_space=False, use_regex=False)
    elif rule in SINGLE_DIGITS:
        cut = Digits(individual_digits=True)
        to_bytes = ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        return [
            f"the tokenizer's rule {rule!r} is not known: GPT-2's is taken, which may cut some "
            "texts otherwise than at the model's training"
        ]
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([cut, to_bytes])
    return []


def _mend_ends(model: Any, fields: dict[str, Any]) -> None:
    """End a reply at the end of a turn too, where the file has a token of its own for that."""
    ends = sorted({int(fields[name]) for name in END_TOKENS if name in fields})
    if ends:
        model.generation_config.eos_token_id = ends


def main() -> int:
    """Remarks on stdout, one a line; a failure as one line on stderr and status 1."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        remarks = convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except ConfigError as error:
        print(error.message, file=sys.stderr)
        return 1
    print("\n".join(remarks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
