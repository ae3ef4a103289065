"""What a model must be like to be served: right alone, in a batch, and behind padding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertModel,
    ConvBertConfig,
    ConvBertModel,
    FunnelConfig,
    FunnelModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    IBertConfig,
    IBertModel,
    MobileBertConfig,
    MobileBertModel,
    XLNetConfig,
    XLNetModel,
    YosoConfig,
    YosoForSequenceClassification,
)

from services.worker.oneshot.inputs import Text, TextInputs
from services.worker.oneshot.loaded import LoadedOneshot
from services.worker.oneshot.torch_model import TOKENS_MAX, load_oneshot
from shared.errors import ConfigError
from shared.wire.messages import Task
from tests.unit.worker.oneshot.models import HIDDEN, POSITIONS, VOCAB, bert_config, save

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "embedding_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.2,
}
TOKENS = np.arange(3, 12, dtype=np.int32)


def load(model: Any, folder: Path, task: Task = "embed", dtype: str = "auto") -> LoadedOneshot:
    return load_oneshot(str(save(model, folder)), task, "cpu", dtype)


def test_segments_are_sent_only_to_models_that_have_them(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=HIDDEN, n_layer=2, n_head=4, n_positions=POSITIONS,
        initializer_range=0.2, pad_token_id=0,
    )  # fmt: skip
    config.num_labels = 3
    loaded = load(GPT2ForSequenceClassification(config), tmp_path, "classify")
    with torch.no_grad():
        theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
        want = theirs(torch.from_numpy(TOKENS[None]).long()).logits.softmax(-1)
    got = loaded.compute([Text(TOKENS, None)], 24)
    np.testing.assert_allclose(got, want, atol=5e-6)


def funnel() -> Any:
    config = FunnelConfig(
        vocab_size=VOCAB, d_model=HIDDEN, n_head=4, d_head=8, d_inner=64,
        block_sizes=[1, 1], num_decoder_layers=1, initializer_range=0.2,
    )  # fmt: skip
    return FunnelModel(config)


def mobilebert() -> Any:
    config = MobileBertConfig(**SIZES | {"embedding_size": 16}, intra_bottleneck_size=HIDDEN)
    model = MobileBertModel(config)
    model.get_input_embeddings().weight.data[0] = 0.5  # trained ones are not 0 for padding
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("make", "task", "kind"),
    [
        (mobilebert, "embed", "mobilebert"),
        (lambda: ConvBertModel(ConvBertConfig(**SIZES)), "embed", "convbert"),
        (funnel, "embed", "funnel"),
        (
            lambda: YosoForSequenceClassification(YosoConfig(**SIZES)),
            "classify",
            "yoso",
        ),
    ],
)
def test_models_that_padding_changes_are_refused(
    tmp_path: Path, make: Any, task: Task, kind: str, dtype: str
) -> None:
    torch.manual_seed(2)
    with pytest.raises(ConfigError, match=f"'{kind}'.*padding"):
        load(make(), tmp_path, task, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_noise_of_small_floats_is_no_reason(tmp_path: Path, dtype: str) -> None:
    torch.manual_seed(3)
    config = bert_config()
    config.num_hidden_layers = 24
    loaded = load(BertModel(config), tmp_path, dtype=dtype)
    assert loaded.num_values == HIDDEN


def test_what_is_no_limit_is_not_taken_for_one(tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = XLNetConfig(
        vocab_size=VOCAB, d_model=HIDDEN, n_layer=2, n_head=4, d_inner=64, initializer_range=0.2
    )
    loaded = load(XLNetModel(config), tmp_path)
    assert isinstance(loaded.inputs, TextInputs)
    assert loaded.inputs.tokens_max == TOKENS_MAX
    with torch.no_grad():
        states = AutoModel.from_pretrained(tmp_path)(torch.from_numpy(TOKENS[None]).long())[0]
    want = torch.nn.functional.normalize(states.mean(1), dim=-1)
    np.testing.assert_allclose(loaded.compute([Text(TOKENS, None)], 24), want, atol=5e-6)


def test_a_model_of_another_make_is_refused(tmp_path: Path) -> None:
    sizes = {key: size for key, size in SIZES.items() if key != "embedding_size"}
    with pytest.raises(ConfigError, match="embeddings"):
        load(IBertModel(IBertConfig(**sizes)), tmp_path)
