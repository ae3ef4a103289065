"""Small random models in transformers format, made on the fly."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    RobertaConfig,
    RobertaModel,
)

from services.worker.config import WorkerConfig

VOCAB = 100
HIDDEN = 32
POSITIONS = 40


SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
}
# Names that models' configs do not know are kept beside the others, and change nothing.
ENCODERS: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": HIDDEN, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
    "xlm-roberta": {"type_vocab_size": 1},
    "mpnet": {},
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "modernbert": {"pad_token_id": 0, "global_attn_every_n_layers": 2, "local_attention": 8},
    "t5": {"d_model": HIDDEN, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    "qwen3": {"head_dim": 8},
}


def make_encoder(folder: Path, kind: str) -> Path:
    """A random encoder of one of the kinds in `ENCODERS`."""
    torch.manual_seed(7)
    sizes = ENCODERS[kind]
    if "dim" not in sizes and "d_model" not in sizes:
        sizes = {**SIZES, **sizes}
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": POSITIONS, **sizes}
    config = AutoConfig.for_model(kind, **sizes)
    auto = AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel
    return save(auto.from_config(config), folder)


def bert_config(**changes: Any) -> BertConfig:
    return BertConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        initializer_range=0.2,
        **changes,
    )


def save(model: Any, folder: Path) -> Path:
    model.eval().save_pretrained(folder)
    return folder


def make_embedder(folder: Path, modes: list[str] | None = None, normalize: bool = True) -> Path:
    """A BERT encoder; with sentence-transformers' files if `modes` are given."""
    torch.manual_seed(1)
    save(BertModel(bert_config()), folder)
    if modes is None:
        return folder
    names = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken"]
    pooling = {f"pooling_mode_{name}": name in modes for name in names}
    (folder / "1_Pooling").mkdir()
    write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": HIDDEN, **pooling}
    )
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    kinds += [("2_Normalize", "Normalize")] if normalize else []
    steps = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", steps)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 24})
    return folder


def make_roberta(folder: Path) -> Path:
    torch.manual_seed(2)
    config = RobertaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        type_vocab_size=1,
    )
    return save(RobertaModel(config), folder)


def make_reranker(folder: Path) -> Path:
    torch.manual_seed(3)
    return save(BertForSequenceClassification(bert_config(num_labels=1)), folder)


def make_classifier(folder: Path, problem_type: str | None = None) -> Path:
    torch.manual_seed(4)
    config = bert_config(id2label={0: "bad", 1: "so-so", 2: "good"}, problem_type=problem_type)
    return save(BertForSequenceClassification(config), folder)


def make_generator(folder: Path) -> Path:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    return save(LlamaForCausalLM(config), folder)


def make_image_classifier(folder: Path) -> Path:
    torch.manual_seed(6)
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        id2label={0: "cat", 1: "dog", 2: "bird", 3: "fish"},
    )
    save(ResNetForImageClassification(config), folder)
    write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": 16, "width": 24},
            "resample": 2,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.4, 0.5, 0.6],
            "image_std": [0.2, 0.25, 0.3],
        },
    )
    return folder


def settings(**values: Any) -> WorkerConfig:
    return WorkerConfig(**values)


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))
