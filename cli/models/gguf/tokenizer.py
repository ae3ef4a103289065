"""The tokenizer of a GGUF file, as transformers has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cli.models.gguf.keys import Metadata
from shared.errors import ConfigError

# How byte-level BPE cuts a text into words before merging, by a file's `tokenizer.ggml.pre`: a
# rule's patterns are applied one after the other, each to what the ones before it have left in one
# piece. Source: llama.cpp's vocabulary, and the tokenizer.json files that its rules were made from.
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_THREE_DIGITS = _WORD + r"\p{N}{1,3}" + _SIGNS + _TAIL
_SINGLE_DIGITS = _WORD + r"\p{N}" + _SIGNS + _TAIL
_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _TAIL
)


def _cased(end: str, digits: str) -> str:
    begin = r"[^\r\n\p{L}\p{N}]?"
    words = f"{begin}{_UPPER}*{_LOWER}+{end}|{begin}{_UPPER}+{_LOWER}*{end}"
    return rf"{words}|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _TAIL


@dataclass(frozen=True, slots=True)
class WordRule:
    """Attributes:
    patterns: that words are cut by.
    is_whole: a word that is a token is taken as it is, whatever merges would make of it.
    adds_bos: a text begins with the token for that, if the file does not say.
    composes: characters are composed first (NFC).
    """

    patterns: tuple[str, ...]
    is_whole: bool = False
    adds_bos: bool = False
    composes: bool = False


_LLAMA3 = WordRule((_THREE_DIGITS,), is_whole=True, adds_bos=True)
_BY_RULE: Mapping[WordRule, str] = {
    _LLAMA3: "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    WordRule((_THREE_DIGITS,)): "smaug-bpe dbrx glm4 chatglm-bpe",
    WordRule((_SINGLE_DIGITS,), composes=True): "qwen2",
    WordRule((_SINGLE_DIGITS,)): "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan grok-2",
    WordRule((r"\p{N}", _GPT2)): (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"
    ),
    WordRule((_GPT2,)): (
        "gpt-2 gpt2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum"
    ),
    WordRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")): "default",
    WordRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")): "falcon",
    WordRule((_cased("", ""),), is_whole=True): "tekken",
    WordRule((_cased(f"{_CONTRACTION}?", "{1,3}"),)): ("gpt-4o llama4 kanana2 minimax-m2"),
    WordRule((r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK)): "deepseek-v3 hunyuan-dense",
    WordRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")): (
        "deepseek-coder"
    ),
}
WORD_RULES = {name: rule for rule, names in _BY_RULE.items() for name in names.split()}


CONTROL, USER_DEFINED = 3, 4  # types of tokens that are matched in a text before it is cut
KINDS = ("gpt2", "llama")
SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # where a file of that kind names none
SPECIAL = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unknown": "tokenizer.ggml.unknown_token_id",
    "padding": "tokenizer.ggml.padding_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
}
# Tokens that end a turn, which files name by their texts only. Source: llama.cpp's vocabulary.
END_TEXTS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>"}
)
# Special tokens of which only their texts count: they are matched as any others. Templates with a
# name (`tokenizer.chat_template.NAME`) stand beside the one that is used, and have a list.
IRRELEVANT = (
    "tokenizer.chat_templates",
    "tokenizer.huggingface.json",  # llama.cpp reads none of it
    *(f"tokenizer.ggml.{name}_token_id" for name in ("seperator", "cls", "mask")),
    *(f"tokenizer.ggml.fim_{part}_token_id" for part in ("pre", "suf", "mid", "pad", "rep", "sep")),
    *(f"tokenizer.ggml.{part}_token_id" for part in ("prefix", "suffix", "middle")),
    "tokenizer.ggml.remove_extra_whitespaces",  # of unigram vocabularies
)


def read_special(keys: Metadata, num_tokens: int) -> dict[str, int]:
    """Ids of special tokens by their names in `SPECIAL`, of those that there are.

    Raises:
        ConfigError: one is no token's.
    """
    is_sentencepiece = keys.value("tokenizer.ggml.model") == "llama"
    ids: dict[str, int] = dict(SENTENCEPIECE_IDS) if is_sentencepiece else {}
    for name, key in SPECIAL.items():
        if keys.has(key):
            ids[name] = keys.integer(key)
            if not 0 <= ids[name] < num_tokens:
                raise keys.refusal(key, f"the vocabulary has {num_tokens} tokens")
    return ids


def end_ids(ids: Mapping[str, int], tokens: list[str], types: list[int]) -> list[int]:
    """Tokens that end a reply: the end of a text, and those of a turn."""
    ends = {ids[name] for name in ("eos", "eot", "eom") if name in ids}
    ends |= {
        index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == CONTROL and token in END_TEXTS
    }
    return sorted(ends)


def build_tokenizer(keys: Metadata, architecture: str, ids: Mapping[str, int]) -> Any:
    """A tokenizer of transformers, with the chat template.

    Raises:
        ConfigError: a key asks for what it cannot do.
    """
    from transformers import PreTrainedTokenizerFast

    kind = keys.text("tokenizer.ggml.model")
    if kind not in KINDS:
        raise keys.refusal("tokenizer.ggml.model", f"is none of {', '.join(KINDS)}")
    tokens, types = vocabulary(keys)
    keys.ignore(*IRRELEVANT)
    keys.ignore_under("tokenizer.chat_template.")
    for key in ("tokenizer.ggml.add_sep_token", "tokenizer.rwkv.world"):
        keys.require(key, False, why="is not supported")
    keys.require("tokenizer.ggml.token_type_count", 0, 1, why="is of encoders")
    for key in ("scores", "merges"):
        keys.ignore(f"tokenizer.ggml.{key}")  # read below, of the kind that has them
    if kind == "gpt2":
        backend, adds_bos = _byte_level(keys, tokens, types, architecture)
    else:
        backend, adds_bos = _sentencepiece(keys, tokens, types, architecture), True
    _check_special(backend, tokens, types)
    texts = {name: tokens[index] for name, index in ids.items()}
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=texts.get("bos"),
        eos_token=texts.get("eos"),
        unk_token=texts.get("unknown"),
        pad_token=texts.get("padding"),
        add_bos_token=keys.flag("tokenizer.ggml.add_bos_token", default=adds_bos),
        add_eos_token=keys.flag("tokenizer.ggml.add_eos_token", default=False),
        clean_up_tokenization_spaces=False,
    )
    if template := keys.text("tokenizer.chat_template", ""):
        made.chat_template = template
    return made


def vocabulary(keys: Metadata) -> tuple[list[str], list[int]]:
    """Texts and types of all tokens.

    Raises:
        ConfigError: there are none.
    """
    tokens = keys.value("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ConfigError("metadata key tokenizer.ggml.tokens is missing")
    types = keys.value("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ConfigError(f"tokenizer.ggml.token_type: {len(types)} for {len(tokens)} tokens")
    return tokens, types


def _byte_level(
    keys: Metadata, tokens: list[str], types: list[int], architecture: str
) -> tuple[Any, bool]:
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    default = "gpt-2" if architecture == "gpt2" else None
    name = keys.text("tokenizer.ggml.pre", default)
    if name not in WORD_RULES:
        raise keys.refusal("tokenizer.ggml.pre", "how it cuts words is not known")
    keys.require("tokenizer.ggml.add_space_prefix", False, why="is not supported with BPE")
    rule = WORD_RULES[name]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(BPE(vocab, _merges(keys, vocab), ignore_merges=rule.is_whole))
    if rule.composes:
        backend.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in rule.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    backend.decoder = decoders.ByteLevel()
    _add_special(backend, tokens, types)
    return backend, rule.adds_bos


def _merges(keys: Metadata, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = keys.value("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise ConfigError("metadata key tokenizer.ggml.merges is missing")
    pairs = []
    for each in merges:
        # The space between two halves is the first behind the first character.
        middle = each.find(" ", 1)
        one, other = each[:middle], each[middle + 1 :]
        if middle < 0 or not vocab.keys() >= {one, other, one + other}:
            raise ConfigError(f"tokenizer.ggml.merges: {each!r} is not of two tokens that make one")
        pairs.append((one, other))
    return pairs


def _sentencepiece(keys: Metadata, tokens: list[str], types: list[int], architecture: str) -> Any:
    from transformers import LlamaTokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        get_merges,
        select_tokenizer_builder,
    )

    keys.require("tokenizer.ggml.pre", "default", why="is not supported with sentencepiece")
    given = {"tokens": tokens, "scores": keys.value("tokenizer.ggml.scores") or [0.0] * len(tokens)}
    if merges := keys.value("tokenizer.ggml.merges"):
        given["merges"] = merges
    is_gemma = architecture.startswith("gemma")
    adds_prefix = keys.flag("tokenizer.ggml.add_space_prefix", default=not is_gemma)
    if is_gemma and adds_prefix:
        raise keys.refusal("tokenizer.ggml.add_space_prefix", "is not supported with Gemma")
    if is_gemma or adds_prefix:
        made = select_tokenizer_builder(architecture, "llama")(given)
    else:
        vocab = {token: index for index, token in enumerate(tokens)}
        made = LlamaTokenizer(vocab=vocab, merges=get_merges(given), add_prefix_space=False)
    _add_special(made.backend_tokenizer, tokens, types)
    return made.backend_tokenizer


def _add_special(backend: Any, tokens: list[str], types: list[int]) -> None:
    from tokenizers import AddedToken

    for wanted, is_special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [
            AddedToken(token, normalized=False, special=is_special)
            for token, kind in zip(tokens, types, strict=True)
            if kind == wanted and token
        ]
        (backend.add_special_tokens if is_special else backend.add_tokens)(added)


def _check_special(backend: Any, tokens: list[str], types: list[int]) -> None:
    """See that special tokens have kept their ids."""
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in (CONTROL, USER_DEFINED) and token and backend.token_to_id(token) != index:
            raise ConfigError(f"tokenizer.ggml.tokens: {token!r} stands there twice")
