"""The bundled demo model."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash
from transformers import AutoTokenizer

from services.worker.models.demo_model import make_demo_model


def test_several_workers_may_make_it_at_once_and_it_is_always_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(make_demo_model, [tmp_path / "a"] * 4))
    assert folders == [tmp_path / "a"] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    make_demo_model(tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        twin = (tmp_path / "b" / path.name).read_bytes()
        assert xxhash.xxh3_64_digest(path.read_bytes()) == xxhash.xxh3_64_digest(twin)


def test_its_tokenizer_is_bytes_and_its_template_marks_turns(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_demo_model(tmp_path / "demo"))
    text = "Grüße, 漢字!\n"
    assert tokenizer(text).input_ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    messages = [{"role": "user", "content": "Hi"}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
