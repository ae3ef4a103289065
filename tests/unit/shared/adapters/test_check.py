"""An adapter's files: what they must be, what they are called by, and that no file harms."""

import json
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from shared.adapters.check import BaseFacts, check_adapter
from shared.adapters.config import AdapterInvalid, AdapterTooLarge
from shared.adapters.source import AdapterLimits
from shared.adapters.vocabulary import vocabulary_hash
from shared.wire.messages import LoraCard
from tests.unit.shared.adapters.adapter_files import change_config, small_adapter, small_card

CARD = small_card()
LIMITS = AdapterLimits()
WEIGHTS = "adapter_model.safetensors"
Q = "base_model.model.model.layers.1.self_attn.q_proj"
Tensors = dict[str, Any]


@contextmanager
def refused(param: str, *words: str) -> Iterator[None]:
    with pytest.raises(AdapterInvalid) as caught:
        yield
    assert caught.value.param == param, caught.value.message
    for each in words:
        assert each in caught.value.message


def rewrite(folder: Path, **changes: Any) -> None:
    """Tensors of another content; None: without it."""
    tensors: Tensors = load_file(folder / WEIGHTS) | changes
    save_file({name: each for name, each in tensors.items() if each is not None}, folder / WEIGHTS)


def header_of(folder: Path) -> tuple[dict[str, Any], bytes]:
    raw = (folder / WEIGHTS).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def write_raw(folder: Path, header: bytes, data: bytes) -> None:
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + data)


def check(folder: Path, card: LoraCard = CARD, limits: AdapterLimits = LIMITS) -> Any:
    return check_adapter(folder, card, limits)


def test_what_a_good_one_is(tmp_path: Path) -> None:
    small_adapter(tmp_path, CARD, rank=5, rank_pattern={r"layers\.2\.mlp.*": 9, "lm_head": 2})
    (tmp_path / "tokenizer.json").write_text("{}")
    for other in ("README.md", "optimizer.pt", "adapter_model.bin"):
        (tmp_path / other).write_text("x")
    found = check(tmp_path)
    assert found.ranks == {"self_attn.q_proj": 5, "mlp.down_proj": 9, "lm_head": 2}
    assert found.lora_rank == 9
    assert found.num_tensors == 14
    assert found.files == ["adapter_config.json", WEIGHTS, "tokenizer.json"]
    assert found.num_bytes == sum((tmp_path / name).stat().st_size for name in found.files)
    assert len(found.adapter_hash) == 32
    assert found.warnings == ["tokenizer.json: the base's tokenizer and template are used"]


def test_another_base_is_told(tmp_path: Path) -> None:
    small_adapter(tmp_path, CARD, base_name="org/other")
    facts = BaseFacts(names=("org/mine", "/models/mine"))
    (warning,) = check_adapter(tmp_path, CARD, LIMITS, facts).warnings
    assert warning.startswith("base_model_name_or_path: 'org/other' is not 'org/mine'")
    small_adapter(tmp_path, CARD, base_name="/models/mine")
    assert not check_adapter(tmp_path, CARD, LIMITS, facts).warnings


TOKENIZER = {
    "model": {"vocab": {"a": 0, "b": 1}, "merges": []},
    "added_tokens": [{"id": 2, "content": "<end>", "special": True}],
}


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (TOKENIZER, ""),
        (TOKENIZER | {"pre_tokenizer": "other"}, ""),
        (TOKENIZER | {"model": {"vocab": [["a", -1.5], ["b", -2]]}}, ""),  # another kind's spelling
        (TOKENIZER | {"model": {"vocab": {"a": 1, "b": 0}}}, "another vocabulary"),
        (TOKENIZER | {"added_tokens": []}, "another vocabulary"),
        (TOKENIZER | {"model": {"vocab": {"a": 0, "b": None}}}, "has no vocabulary"),
        (TOKENIZER | {"model": {"vocab": [["a"]]}}, "has no vocabulary"),
        (TOKENIZER | {"model": {"vocab": {"\ud800": 0}}}, "another vocabulary"),
        (TOKENIZER | {"added_tokens": [{}]}, "has no vocabulary"),
        (TOKENIZER | {"added_tokens": 3}, "has no vocabulary"),
        ({"model": 3}, "has no vocabulary"),
        ([], "is no JSON object"),
    ],
)
def test_a_tokenizer_of_another_vocabulary_is_refused(
    tmp_path: Path, tokenizer: Any, words: str
) -> None:
    small_adapter(tmp_path, CARD)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    check(tmp_path)  # nothing is known of the base's
    facts = BaseFacts(vocabulary=vocabulary_hash(json.dumps(TOKENIZER).encode()))
    if not words:
        check_adapter(tmp_path, CARD, LIMITS, facts)
        return
    with refused("tokenizer.json", words):
        check_adapter(tmp_path, CARD, LIMITS, facts)


def test_the_hash_is_of_what_is_computed(tmp_path: Path) -> None:
    def hash_of(name: str, **options: Any) -> str:
        found: str = check(small_adapter(tmp_path / name, CARD, **options)).adapter_hash
        return found

    plain = hash_of("plain")
    assert hash_of("again", base_name="other") == plain
    others = [
        hash_of("seed", seed=1),
        hash_of("rank", rank=4),
        hash_of("dtype", dtype="BF16"),
        hash_of("layers", layers=[0]),
        hash_of("targets", targets=["q_proj"]),
    ]
    assert len({plain, *others}) == 6
    tensors = load_file(tmp_path / "plain" / WEIGHTS)
    save_file(dict(reversed(tensors.items())), tmp_path / "again" / WEIGHTS, {"other": "order"})
    assert hash_of_folder(tmp_path / "again") == plain
    for change in ({"lora_alpha": 17}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 3}}):
        small_adapter(tmp_path / "again", CARD)
        change_config(tmp_path / "again", **change)
        assert hash_of_folder(tmp_path / "again") != plain
    small_adapter(tmp_path / "again", CARD)
    one, other = (
        f"base_model.model.model.layers.{at}.mlp.down_proj.lora_B.weight" for at in (0, 1)
    )
    rewrite(tmp_path / "again", **{one: tensors[other], other: tensors[one]})
    assert hash_of_folder(tmp_path / "again") != plain, "the same tensors under others' names"


def hash_of_folder(folder: Path) -> str:
    found: str = check(folder).adapter_hash
    return found


def test_the_hash_stays_what_it_is(tmp_path: Path) -> None:
    """It names what is stored: another way of hashing needs another version in it."""
    shapes = {f"{Q}.lora_A.weight": (8, 24), f"{Q}.lora_B.weight": (40, 8)}
    ones = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    save_file(ones, tmp_path / WEIGHTS)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert check(tmp_path).adapter_hash == "3ce06df8a483b32a52f096fe92a7d002"


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({f"{Q}.lora_B.weight": None}, f"{Q}.lora_A.weight", ["no", f"{Q}.lora_B"]),
        ({f"{Q}.lora_A.weight": None}, f"{Q}.lora_B.weight", ["no", f"{Q}.lora_A"]),
        ({f"{Q}.lora_A.weight": np.ones((4, 24))}, f"{Q}.lora_A.weight", ["dtype", "F64"]),
        (
            {f"{Q}.lora_A.weight": np.ones((4, 24), np.float32)},
            f"{Q}.lora_A.weight",
            ["[4, 24]", "rank 8", "[8, 24]"],
        ),
        (
            {f"{Q}.lora_A.weight": np.ones((24, 8), np.float32)},
            f"{Q}.lora_A.weight",
            ["[24, 8]", "[8, 24]"],
        ),
        (
            {f"{Q}.lora_B.weight": np.ones((41, 8), np.float32)},
            f"{Q}.lora_B.weight",
            ["[41, 8]", "[40, 8]"],
        ),
        ({f"{Q}.lora_B.weight": np.ones(320, np.float32)}, f"{Q}.lora_B.weight", ["[320]"]),
        ({f"{Q}.lora_B.weight": np.ones((0, 8), np.float32)}, f"{Q}.lora_B.weight", ["[0, 8]"]),
        (
            {Q.replace("q_proj", "w_proj") + ".lora_A.weight": np.ones((8, 24), np.float32)},
            Q.replace("q_proj", "w_proj") + ".lora_A.weight",
            ["no linear layer"],
        ),
        *(
            ({name: np.ones((8, 24), np.float32)}, name, words)
            for name, words in (
                (Q.replace(".1.", ".3.") + ".lora_A.weight", ["no linear layer"]),
                (Q.replace(".1.", ".01.") + ".lora_A.weight", ["no linear layer"]),
                (Q.removeprefix("base_model.model.") + ".lora_A.weight", ["is not named"]),
                (f"{Q}.lora_A.default.weight", ["is not named"]),
                ("base_model.model.model.embed_tokens.lora_embedding_A", ["embedding"]),
                ("base_model.model.model.embed_tokens.weight", ["is not named"]),
                (f"{Q}.lora_magnitude_vector", ["DoRA"]),
                (f"{Q}.lora_B.bias", ["bias"]),
                (f"{Q}.base_layer.weight", ["no copy of an outer layer"]),
                ("base_model.model.lm_head.base_layer.weight", ["no copy of an outer layer"]),
                ("x\n" * 300, []),
            )
            if words
        ),
    ],
)
def test_tensors_that_do_not_fit(
    tmp_path: Path, changes: Tensors, param: str, words: list[str]
) -> None:
    small_adapter(tmp_path, CARD)
    rewrite(tmp_path, **changes)
    with refused(param, *words):
        check(tmp_path)


def test_a_tensor_of_a_layer_that_the_config_leaves_out(tmp_path: Path) -> None:
    small_adapter(tmp_path, CARD, targets=["q_proj"])
    change_config(tmp_path, layers_to_transform=[0, 2])
    with refused(f"{Q}.lora_A.weight", "layers_to_transform: [0, 2]"):
        check(tmp_path)


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"target_modules": ["q_proj"]}, False),
        ({"target_modules": "all-linear"}, False),
        ({"target_modules": r".*\.(q|k)_proj"}, False),
        ({"target_modules": ["layers.1.self_attn.q_proj"]}, False),
        ({"target_modules": None}, True),
        ({"target_modules": ["_proj"]}, True),
        ({"target_modules": "q_proj"}, True),  # as PEFT has it, of a whole name
        ({"target_modules": ["q_proj"], "exclude_modules": ["1.self_attn.q_proj"]}, True),
        ({"target_modules": ["q_proj"], "exclude_modules": r".*\.1\..*"}, True),
        ({"target_modules": ["q_proj"], "layers_to_transform": [0, 2]}, True),
    ],
)
def test_a_module_that_the_config_targets_has_tensors(
    fields: dict[str, Any], is_taken: bool, tmp_path: Path
) -> None:
    small_adapter(tmp_path, CARD, targets=["q_proj"])
    rewrite(tmp_path, **{f"{Q}.lora_{which}.weight": None for which in "AB"})
    change_config(tmp_path, **fields)
    if is_taken:
        check(tmp_path)
        return
    with pytest.raises(AdapterInvalid, match="is missing: target_modules of the config names it"):
        check(tmp_path)


@pytest.mark.parametrize(
    ("source", "base", "value", "is_taken"),
    [
        ("F32", "float32", 3.4e38, True),
        ("F32", "float32", np.inf, False),
        ("F32", "float32", -np.nan, False),
        ("F32", "bfloat16", float.fromhex("0x1.fefffep127"), True),
        ("F32", "bfloat16", float.fromhex("0x1.ffp127"), False),  # rounds to infinity
        ("F32", "float16", 65519.99, True),
        ("F32", "float16", -65520.0, False),
        ("BF16", "bfloat16", 3.38e38, True),
        ("BF16", "bfloat16", -np.inf, False),
        ("BF16", "float16", 65280.0, True),
        ("BF16", "float16", 65536.0, False),
        ("F16", "float16", 65504.0, True),
        ("F16", "float32", np.nan, False),
        ("F16", "bfloat16", np.inf, False),
    ],
)
def test_values_that_the_base_cannot_hold(
    tmp_path: Path, source: str, base: str, value: float, is_taken: bool
) -> None:
    card = small_card(base)
    small_adapter(tmp_path, card, dtype=source)
    header, data = header_of(tmp_path)
    name = f"{Q}.lora_B.weight"
    at = header[name]["data_offsets"][0] + (4 if source == "F32" else 2) * 77
    if source == "F32":
        raw = np.float32(value).tobytes()
    elif source == "F16":
        raw = np.float16(value).tobytes()
    else:
        raw = np.float32(value).tobytes()[2:]
    write_raw(tmp_path, json.dumps(header).encode(), data[:at] + raw + data[at + len(raw) :])
    if is_taken:
        check(tmp_path, card)
        return
    with refused(name, f"{value:g}".lstrip("-"), f"not finite in {base}"):
        check(tmp_path, card)


def test_files_that_are_not_there_or_no_files(tmp_path: Path) -> None:
    with refused("adapter_config.json", "No such file"):
        check(tmp_path / "nowhere")
    small_adapter(tmp_path, CARD)
    (tmp_path / WEIGHTS).unlink()
    with refused(WEIGHTS, "No such file"):
        check(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"cos\nsystem\n")
    with refused(WEIGHTS, "adapter_model.bin", "pickle"):
        check(tmp_path)
    os.mkfifo(tmp_path / WEIGHTS)
    with refused(WEIGHTS, "is no file"):
        check(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    (tmp_path / "adapter_config.json").mkdir()
    with refused("adapter_config.json", "is no file"):
        check(tmp_path)


def test_what_is_too_large(tmp_path: Path) -> None:
    small_adapter(tmp_path, CARD)
    size = (tmp_path / WEIGHTS).stat().st_size
    with refused(WEIGHTS, str(size), f"at most {size - 1}"):
        check(tmp_path, limits=AdapterLimits(num_bytes=size - 1))
    with refused(WEIGHTS, "bytes of files", f"at most {size}"):
        check(tmp_path, limits=AdapterLimits(num_bytes=size))
    with pytest.raises(AdapterTooLarge) as caught:
        check(tmp_path, limits=AdapterLimits(num_bytes=size))
    assert (caught.value.http_status, caught.value.code) == (413, "adapter_too_large")
    with refused(WEIGHTS, "a header of", "at most 64"):
        check(tmp_path, limits=AdapterLimits(header_bytes=64))
    with refused(WEIGHTS, "14 tensors, at most 13"):
        check(tmp_path, limits=AdapterLimits(num_tensors=13))
    (tmp_path / "adapter_config.json").write_bytes(b" " * (1 << 20) + b"{}")
    with refused("adapter_config.json", "larger than"):
        check(tmp_path)


def test_a_header_that_names_bytes_twice_or_not_at_all(tmp_path: Path) -> None:
    small_adapter(tmp_path, CARD)
    header, data = header_of(tmp_path)
    first, second, *_ = sorted(header.keys() - {"__metadata__"}, key=lambda name: (
        header[name]["data_offsets"]))  # fmt: skip
    a, b = header[first]["data_offsets"]
    for offsets, words in (
        ([a + 4, b + 4], "before it"),
        ([b, a], "no two ends"),
        ([a, b - 4], "bytes, "),
        ([-4, b - a - 4], "no two ends"),
        ([a, b, b], "no two ends"),
        ([float(a), float(b)], "no two ends"),
        ([a + 2**62, b + 2**62], "no two ends"),
        ([a + 2**40, b + 2**40], "before it"),
        (None, "no two ends"),
    ):
        changed = header | {first: header[first] | {"data_offsets": offsets}}
        write_raw(tmp_path, json.dumps(changed).encode(), data)
        with pytest.raises(AdapterInvalid, match=words):
            check(tmp_path)
    changed = header | {second: header[second] | {"data_offsets": header[first]["data_offsets"]}}
    changed[second]["shape"] = header[first]["shape"]
    write_raw(tmp_path, json.dumps(changed).encode(), data)
    with pytest.raises(AdapterInvalid, match="does not begin where"):
        check(tmp_path)
    write_raw(tmp_path, json.dumps(header).encode(), data + b"more")
    with refused(WEIGHTS, "bytes behind its tensors"):
        check(tmp_path)
    twice = json.dumps(header)[:-1] + f', "{first}": {json.dumps(header[first])}' + "}"
    write_raw(tmp_path, twice.encode(), data)
    with refused(WEIGHTS, "is there twice"):
        check(tmp_path)
    write_raw(tmp_path, b'{"__metadata__": {}}', b"")
    with refused(WEIGHTS, "no tensors"):
        check(tmp_path)


@dataclass(frozen=True)
class Good:
    folder: Path
    raw: bytes = field(repr=False)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    folder = tmp_path_factory.mktemp("adapter")
    small_adapter(folder, CARD, rank=2)
    return Good(folder, (folder / WEIGHTS).read_bytes())


HOSTILE = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def assert_harmless(folder: Path, raw: bytes, is_surely_bad: bool) -> None:
    """Refused, or taken for good, and not much memory goes into it."""
    (folder / WEIGHTS).write_bytes(raw)
    refusal = None
    tracemalloc.start()
    try:
        check(folder)
    except AdapterInvalid as error:
        refusal = error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 4 << 20
    assert refusal or not is_surely_bad
    if refusal:
        json.dumps([refusal.param, refusal.message], ensure_ascii=False).encode()
        assert refusal.param and len(refusal.message) < 1000


@given(st.data())
@HOSTILE
def test_no_truncated_file_is_taken(good: Good, data: st.DataObject) -> None:
    folder, raw = good.folder, good.raw
    assert_harmless(folder, raw[: data.draw(st.integers(0, len(raw) - 1))], is_surely_bad=True)


@given(st.data())
@HOSTILE
def test_no_changed_header_does_harm(good: Good, data: st.DataObject) -> None:
    folder, raw = good.folder, good.raw
    changed = bytearray(raw)
    end = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    assert_harmless(folder, bytes(changed), is_surely_bad=False)


@given(st.integers(0, 2**64 - 1) | st.sampled_from([2**63, 2**64 - 1, 2**64 - 8, 100 << 20]))
@HOSTILE
def test_no_length_of_a_header_does_harm(good: Good, size: int) -> None:
    folder, raw = good.folder, good.raw
    changed = size.to_bytes(8, "little") + raw[8:]
    assert_harmless(folder, changed, is_surely_bad=changed != raw)


NUMBERS = st.integers(-1, 9) | st.sampled_from([2**31, 2**63, 2**64, 10**30])
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "F64", "I8", "", None, ["F32"]]),
        "shape": st.lists(NUMBERS, max_size=4) | st.none(),
        "data_offsets": st.lists(NUMBERS, max_size=3) | st.text(max_size=2),
    }
)
TENSOR_NAMES = st.text(max_size=8) | st.sampled_from(
    [f"{Q}.lora_A.weight", f"{Q}.lora_B.weight", "__metadata__", "\ud800"]
)


@given(st.dictionaries(TENSOR_NAMES, ENTRIES | NUMBERS, max_size=4), st.binary(max_size=64))
@HOSTILE
def test_no_header_of_somebodys_own_does_harm(
    good: Good, header: dict[str, Any], data: bytes
) -> None:
    raw = json.dumps(header).encode()
    file = len(raw).to_bytes(8, "little") + raw + data
    assert_harmless(good.folder, file, is_surely_bad=True)


def test_a_header_that_is_nested_too_deeply(good: Good) -> None:
    raw = b'{"x": ' + b"[" * 200_000
    file = len(raw).to_bytes(8, "little") + raw
    assert_harmless(good.folder, file, is_surely_bad=True)
