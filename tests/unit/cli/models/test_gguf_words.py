"""The tokenizers of GGUF files: sentencepiece, rules of words, what is refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaTokenizer

from cli.models.gguf.keys import Metadata
from cli.models.gguf.tokenizer import WORD_RULES, build_tokenizer, end_ids, read_special
from services.worker.models.demo_model import byte_symbols
from shared.errors import ConfigError

PIECES = ["▁", "a", "b", "▁a", "ab", "▁ab", "ba"]
SENTENCEPIECE: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": [
        "<unk>", "<s>", "</s>", "<|end|>", *[f"<0x{byte:02X}>" for byte in range(256)], *PIECES,
    ],
    "tokenizer.ggml.token_type": [2, 3, 3, 3] + [6] * 256 + [1] * len(PIECES),
    "tokenizer.ggml.scores": [0.0] * 260 + [-20.0, -20.0, -20.0, -1.0, -2.0, -3.0, -4.0],
    "tokenizer.chat_template": "{{ messages }}",
}  # fmt: skip
BYTE_LEVEL: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [*byte_symbols(), "<|im_end|>"],
    "tokenizer.ggml.token_type": [1] * 256 + [3],
    "tokenizer.ggml.merges": [],
}


def made(fields: dict[str, Any], architecture: str = "llama", **changes: Any) -> Any:
    keys = Metadata(fields | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}, "")
    ids = read_special(keys, len(fields["tokenizer.ggml.tokens"]))
    tokenizer = build_tokenizer(keys, architecture, ids)
    keys.finish([])
    return tokenizer


def texts(tokenizer: Any, text: str) -> list[str]:
    tokens: list[str] = tokenizer.convert_ids_to_tokens(tokenizer.encode(text))
    return tokens


@pytest.mark.parametrize("text", ["ab ab", "abba  a", "<|end|>ab", " ab", "é", ""])
def test_sentencepiece_is_as_transformers_has_it(text: str) -> None:
    tokens = SENTENCEPIECE["tokenizer.ggml.tokens"]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "ab"), ("b", "a")]
    vocab = {token: index for index, token in enumerate(tokens)}
    theirs = LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=True)
    theirs.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    ours = made(SENTENCEPIECE)
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text), skip_special_tokens=True) == theirs.decode(
        theirs.encode(text), skip_special_tokens=True
    )


def test_flags_of_a_file_are_followed() -> None:
    assert texts(made(SENTENCEPIECE), "ab") == ["<s>", "▁ab"]
    assert texts(made(SENTENCEPIECE, add_space_prefix=False), "ab") == ["<s>", "ab"]
    assert texts(made(SENTENCEPIECE, add_bos_token=False), "ab") == ["▁ab"]
    assert texts(made(SENTENCEPIECE, add_eos_token=True), "ab") == ["<s>", "▁ab", "</s>"]
    assert texts(made(BYTE_LEVEL, pre="gpt-2"), "ab") == ["a", "b"]
    begun = made(BYTE_LEVEL, pre="llama-bpe", bos_token_id=256)
    assert texts(begun, "ab") == ["<|im_end|>", "a", "b"]


def test_a_reply_ends_at_each_token_that_ends_a_turn() -> None:
    keys = Metadata(SENTENCEPIECE, "llama")
    tokens, types = (SENTENCEPIECE[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    assert end_ids(read_special(keys, len(tokens)), tokens, types) == [2, 3]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": "t5"}, "tokenizer.ggml.model"),
        ({"precompiled_charsmap": [1]}, "precompiled_charsmap"),
        ({"eos_token_id": 1000}, "eos_token_id"),
        ({"token_type": [1]}, "token_type"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"add_bos_token": 1}, "add_bos_token"),
    ],
)
def test_what_cannot_be_followed_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        made(SENTENCEPIECE, **changes)
    with pytest.raises(ConfigError, match="merges"):
        made(BYTE_LEVEL, pre="gpt-2", merges=["a b"])


@pytest.mark.parametrize("rule", WORD_RULES)
def test_any_text_comes_back_under_any_rule(rule: str) -> None:
    tokenizer = made(BYTE_LEVEL, pre=rule, add_bos_token=False)
    text = "Don't cut 12345 7\n\n  ÉTÉ 東京 <|im_end|> x"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=60)
@given(st.text("abc._", min_size=1, max_size=20), st.integers() | st.text(max_size=4))
def test_no_key_of_the_architecture_is_left_aside(name: str, value: int | str) -> None:
    keys = Metadata({f"llama.{name}": value, "general.name": "x", "other.key": 1}, "llama")
    with pytest.raises(ConfigError, match="is not known here") as caught:
        keys.finish(["qwen2"])
    assert f"llama.{name}" in caught.value.message
