"""How byte-level BPE cuts a text into words before merging, by a file's `tokenizer.ggml.pre`.

Source: llama.cpp's vocabulary, and the tokenizer.json files that its rules were made from. A rule's
patterns are applied one after the other, each to what the ones before it have left in one piece.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
