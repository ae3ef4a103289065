"""What models derive from positions goes by row, whatever else is in the step."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.worker.device.decoder.attention import UnsupportedModelError, chunk_of, note_positions
from services.worker.device.decoder.embeddings import PositionTable, embed_by_row
from services.worker.device.model import load_model
from tests.unit.worker.device.driver import Driver, make_core
from tests.unit.worker.device.gpu.test_gpu_executor import Repeats, gpu_executor
from tests.unit.worker.device.test_torch_executor import executor_of, greedy, prompt, save_model

LLAMA4 = {
    "num_local_experts": 2,
    "intermediate_size_mlp": 96,
    "attn_temperature_tuning": False,
    "attention_chunk_size": 50,
    "no_rope_layers": [1, 0],
    "moe_layers": [1],
    "layer_types": ["chunked_attention", "full_attention"],
}
TUNED = {"attn_temperature_tuning": True, "floor_scale": 16, "attn_scale": 0.5}
BART = {
    "d_model": 64,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "encoder_layers": 1,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "forced_eos_token_id": None,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chunks": ("llama4_text", LLAMA4),
    "chunks, temperature": ("llama4_text", {**LLAMA4, **TUNED}),
    "learned positions": ("bart", BART),
    "sinusoids": ("pegasus", BART),
    "offset": ("roberta", {"is_decoder": True, "pad_token_id": 3}),
}
Make = Callable[[Path], AbstractContextManager[Any]]
MAKES: dict[str, Make] = {
    "cpu": executor_of,
    "recorded": lambda folder: gpu_executor(folder, Repeats()),
}


def save(folder: Path, name: str) -> Any:
    kind, changes = KINDS[name]
    tiny = {"num_hidden_layers": 2, "initializer_range": 0.15, "init_std": 0.15}
    return save_model(folder, kind, **{**tiny, **changes})


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("chunks", "cpu"),
        ("chunks, temperature", "recorded"),
        ("learned positions", "recorded"),
        ("sinusoids", "cpu"),
        ("offset", "recorded"),
    ],
)
def test_each_row_is_as_transformers_computes_it_alone(
    tmp_path: Path, name: str, make: str
) -> None:
    """In chunks of a prompt, decoding beside others, and across the ends of attention chunks."""
    reference = save(tmp_path, name)
    prompts = {str(n): [4 + token % 190 for token in prompt(n, n)] for n in (5, 48, 130)}
    with MAKES[make](tmp_path) as executor:
        driver = Driver(make_core(executor, turns_running_max=5, prefill_tokens_max=60), executor)
        for turn, tokens in prompts.items():
            driver.submit(turn, tokens, max_tokens=4, prompt_logprobs=0)
        driver.run()
    for turn, tokens in prompts.items():
        assert driver.tokens(turn) == greedy(reference, tokens, 4)
        with torch.inference_mode():
            logits = reference(torch.tensor([tokens]), use_cache=False).logits[0]
        want = logits.log_softmax(-1)[range(len(tokens) - 1), tokens[1:]]
        entries = driver.deltas[turn][0].prompt_logprobs
        assert entries is not None
        got = torch.tensor([each.logprob for each in entries[1:]])
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("index", "chunk"), [(0, 50), (1, 0), (2, 0), (-2, 0), (-3, 0)])
def test_layers_of_other_parts_have_no_chunk(index: int, chunk: int) -> None:
    layer: Any = torch.nn.Module()
    layer.layer_idx = index
    layer.config = SimpleNamespace(layer_types=LLAMA4["layer_types"], attention_chunk_size=50)
    note_positions(layer)
    assert chunk_of(layer) == chunk


def test_a_model_that_counts_from_further_on_takes_fewer_tokens(tmp_path: Path) -> None:
    save(tmp_path, "offset")
    assert load_model(str(tmp_path), "cpu", "auto").max_model_len == 512 - 4


def test_models_that_read_their_positions_are_left_as_they_are(tmp_path: Path) -> None:
    for kind in ("llama", "gpt2", "opt"):
        save_model(tmp_path / kind, kind, num_hidden_layers=1)
        model = load_model(str(tmp_path / kind), "cpu", "auto")
        assert not model.module._forward_pre_hooks
        assert not any(isinstance(module, PositionTable) for module in model.module.modules())


class _Counting(torch.nn.Module):
    """Positions in a form that nothing here knows: as many fewer as a call has tokens."""

    def __init__(self, table: torch.nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        length = input_ids.shape[-1]
        positions: torch.Tensor = self.table.weight[torch.arange(length).flip(0)]
        return positions[None]


def test_positions_that_depend_on_a_calls_length_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "learned positions")
    model = load_model(str(tmp_path), "cpu", "auto").module
    decoder = model.model.decoder
    decoder.embed_positions = _Counting(decoder.embed_positions.original)
    with pytest.raises(UnsupportedModelError, match="length"):
        embed_by_row(model, 512)
