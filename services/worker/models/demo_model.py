"""The bundled demo model: a small Llama with a byte-level tokenizer, made on first start.

Deterministic: the same files on every machine, in plain transformers format, from a seeded
    generator and without torch. Its weights are random, so it talks nonsense; they are shaped so
    that the nonsense is mostly printable and ends.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

DEMO_MODEL_ID = "symphony-demo"
SEED = 20260401

NUM_LAYERS = 6
HIDDEN = 256
NUM_HEADS = 8
NUM_KV_HEADS = 4
HEAD_DIM = 32
INTERMEDIATE = 704
MAX_POSITIONS = 8192
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
VOCAB = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n# Tools' }}"
    "{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Weights = dict[str, npt.NDArray[np.float32]]


def make_demo_model(folder: Path) -> Path:
    """Write the model into `folder` unless a whole one is there; returns `folder`.

    Written beside and renamed, so that a folder that exists is complete, whatever else writes it.
    """
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    building.chmod(0o755)
    _write_tokenizer(building)
    save_file(_weights(), building / "model.safetensors", metadata={"format": "pt"})
    _write_json(
        building / "generation_config.json", {"eos_token_id": [256, 258], "pad_token_id": 259}
    )
    _write_json(building / "config.json", _config())
    try:
        building.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise
        shutil.rmtree(building)  # another worker was faster; its files are the same
    return folder


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
        "bos_token_id": None,
        "eos_token_id": [256, 258],
        "pad_token_id": 259,
        "torch_dtype": "float32",
    }


def _weights() -> Weights:
    rng = np.random.Generator(np.random.Philox(SEED))

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        values = rng.standard_normal((rows, columns), np.float32)
        return values * np.float32(columns**-0.5)

    weights: Weights = {
        "model.embed_tokens.weight": matrix(VOCAB, HIDDEN) * np.float32(np.sqrt(HIDDEN)),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(NUM_LAYERS):
        name = f"model.layers.{layer}."
        weights[name + "self_attn.q_proj.weight"] = matrix(NUM_HEADS * HEAD_DIM, HIDDEN)
        weights[name + "self_attn.k_proj.weight"] = matrix(NUM_KV_HEADS * HEAD_DIM, HIDDEN)
        weights[name + "self_attn.v_proj.weight"] = matrix(NUM_KV_HEADS * HEAD_DIM, HIDDEN)
        weights[name + "self_attn.o_proj.weight"] = matrix(HIDDEN, NUM_HEADS * HEAD_DIM)
        weights[name + "mlp.gate_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        weights[name + "mlp.up_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        weights[name + "mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
        weights[name + "input_layernorm.weight"] = np.ones(HIDDEN, np.float32)
        weights[name + "post_attention_layernorm.weight"] = np.ones(HIDDEN, np.float32)
    head = matrix(VOCAB, HIDDEN) * np.float32(3.0)
    speakable = {*range(32, 127), 10, 258}  # printable ASCII, newline, end of turn
    head[[row for row in range(VOCAB) if row not in speakable]] *= np.float32(0.1)
    weights["lm_head.weight"] = head
    return weights


def _write_tokenizer(folder: Path) -> None:
    # Byte b is token b: the byte-level alphabet in byte order, without merges.
    vocab = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": MAX_POSITIONS,
            "eos_token": "<|im_end|>",
            "pad_token": "<|pad|>",
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def byte_symbols() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE (GPT-2): itself, or 256 and up."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (256 + n for n in range(256))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
