"""A random BERT with a tokenizer of whole words: speed does not depend on what weights say."""

from pathlib import Path
from typing import Any

SEED = 0
NUM_LAYERS = 4
HIDDEN = 256
NUM_HEADS = 4
POSITIONS = 512
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = [
    "a", "of", "in", "to", "it", "is", "on", "by", "at", "as", "an", "or", "the", "and", "for",
    "are", "but", "not", "you", "all", "can", "her", "was", "one", "our", "out", "day", "get",
    "has", "him", "his", "how", "man", "new", "now", "old", "see", "two", "way", "who", "boy",
    "did", "its", "let", "put", "say", "she", "too", "use", "work", "year", "back", "call",
    "came", "each", "even", "find", "give", "good", "hand", "here", "high", "home", "just",
    "know", "last", "life", "line", "live", "long", "look", "made", "make", "many", "more",
    "most", "move", "much", "must", "name", "need", "next", "only", "open", "over", "part",
    "place", "plan", "point", "read", "right", "same", "seem", "set", "show", "side", "small",
    "some", "still", "such", "take", "tell", "than", "that", "them", "then", "there", "these",
    "thing", "think", "this", "time", "turn", "under", "very", "want", "well",
]  # fmt: skip


def make_encoder(folder: Path) -> Path:
    """A BERT encoder (4 layers, hidden 256, 3 M parameters) with mean pooling, in transformers'
    format.
    """
    from transformers import BertModel

    return _save(BertModel, folder)


def make_classifier(folder: Path, num_labels: int) -> Path:
    """The same with a head over so many labels; with one it is a reranker."""
    from transformers import BertForSequenceClassification

    return _save(BertForSequenceClassification, folder, num_labels=num_labels)


def _save(kind: Any, folder: Path, **config_fields: Any) -> Path:
    import torch
    from transformers import BertConfig, PreTrainedTokenizerFast

    torch.manual_seed(SEED)
    config = BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=HIDDEN,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=POSITIONS,
        **config_fields,
    )
    kind(config).eval().save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=POSITIONS,
    )
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocab = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocab[name]) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer
