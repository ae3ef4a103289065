"""What adapter_config.json may say. (What PEFT itself writes: test_adapter_peft.py.)"""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.adapters import patterns
from shared.adapters.config import AdapterInvalid, parse_config
from shared.adapters.patterns import first_matches

PLAIN: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q"]}


def parse(**fields: Any) -> Any:
    return parse_config(json.dumps(PLAIN | fields).encode(), 256)


def test_what_is_not_said_is_as_in_peft() -> None:
    config = parse_config(b'{"peft_type": "LORA"}', 256)
    assert (config.rank, config.alpha, config.is_rslora, config.layers) == (8, 8.0, False, None)
    assert not config.rank_pattern and not config.alpha_pattern and not config.unknown


@pytest.mark.parametrize(
    "fields",
    [
        {"init_lora_weights": init}
        for init in (None, True, False, "gaussian", "eva", "orthogonal", "mica")
    ]
    + [
        {"modules_to_save": []},
        {"rank_pattern": None, "alpha_pattern": None},
        {"layers_to_transform": []},
        {"bias": None},
        {"lora_alpha": -2.5},
        {"corda_config": {"rho": 1}, "layers_pattern": "layers"},
    ],
)
def test_what_changes_nothing_is_taken(fields: dict[str, Any]) -> None:
    assert not parse(**fields).unknown


def test_what_nobody_knows_is_told() -> None:
    unknown = parse(quantum_config={"deep": 1}, nothing=None, off=False, empty=[]).unknown
    assert unknown == ("quantum_config: unknown, left aside: {'deep': 1}",)
    assert len(parse(**{f"new_{at}": 1 for at in range(1000)}).unknown) == 16


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("peft_type", "IA3", "'IA3' is not 'LORA'"),
        ("peft_type", None, "None is not 'LORA'"),
        ("r", 0, "0 is not 1 to 256"),
        ("r", 257, "257 is not 1 to 256"),
        ("r", True, "True is not"),
        ("r", "8", "'8' is not"),
        ("r", 8.0, "8.0 is not"),
        ("lora_alpha", "16", "'16' is not a number"),
        ("lora_alpha", 10**400, "is not a number"),
        ("use_rslora", "yes", "'yes' is not true or false"),
        ("rank_pattern", ["q"], "['q'] is not an object"),
        ("rank_pattern", {"q": 300}, "300 is not 1 to 256"),
        ("rank_pattern", {"q" * 513: 3}, "is not up to 512 characters"),
        ("alpha_pattern", {"q": None}, "None is not a number"),
        ("alpha_pattern", {str(at): 1 for at in range(8193)}, "8193 patterns, at most 8192"),
        ("layers_to_transform", "0", "'0' is not a number, or"),
        ("layers_to_transform", [True], "[True] is not a number, or"),
        ("base_model_name_or_path", 3, "3 is not a text"),
        ("init_lora_weights", "magic", "'magic' is not one of True, False, 'gaussian'"),
        ("init_lora_weights", 3, "3 is not one of"),
        ("init_lora_weights", "pissa_niter_16", "a changed base"),
        ("trainable_token_indices", [], "[]"),
    ],
)
def test_a_refusal_names_field_and_value(field: str, value: Any, expected: str) -> None:
    with pytest.raises(AdapterInvalid) as caught:
        parse(**{field: value})
    assert caught.value.param == field
    assert caught.value.message.startswith(f"{field}: ") and expected in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"r": 4, "r": 8}',
        b'{"peft_type": "LORA", "x": {"a": 1, "a": 2}}',
        b'{"peft_type": "LORA", "r": NaN}',
        b'{"r": ' + b"9" * 5000 + b"}",
        b'{"x": ' + b"[" * 100_000,
    ],
)
def test_a_file_that_is_no_json_object(raw: bytes) -> None:
    with pytest.raises(AdapterInvalid) as caught:
        parse_config(raw, 256)
    assert caught.value.param == "adapter_config.json"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias",
        "layers_to_transform", "init_lora_weights", "base_model_name_or_path", "use_dora",
        "velora_config", "other",
    ]
)  # fmt: skip


@given(st.dictionaries(FIELDS, JSON))
@settings(max_examples=300, deadline=None)
def test_nothing_else_than_a_refusal_comes_of_any_value(fields: dict[str, Any]) -> None:
    refusal = None
    try:
        parse(**fields)
    except AdapterInvalid as error:
        refusal = error
    if refusal:
        assert refusal.param in fields
        json.dumps([refusal.param, refusal.message], ensure_ascii=False).encode()


NAMES = ["model.layers.0.self_attn.q_proj", "model.layers.11.mlp.up_proj", "lm_head"]


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("q_proj", [0]),
        ("proj", []),
        ("self_attn.q_proj", [0]),
        ("selfXattn.q_proj", []),
        ("self_attn.q.proj", [0]),  # a point is any character
        (r"self_attn\.q\.proj", []),
        ("^lm_head", [2]),
        ("^q_proj", []),
        (r".*\.up_proj", [1]),
        (r"layers\.\d\..*", [0]),
        (r"layers\.(0|11)\.\w+\.\w+_proj", [0, 1]),
        ("q_proj|lm_head", [0, 2]),
        ("", []),
    ],
)
def test_a_pattern_matches_as_in_peft(pattern: str, matching: list[int]) -> None:
    found = first_matches("rank_pattern", [pattern], NAMES)
    assert found == {NAMES[at]: pattern for at in matching}


def test_the_first_pattern_that_matches_counts_whatever_its_kind() -> None:
    ordered = ["up_proj", r"layers\.\d+\.\w+\.\w+", "q_proj", "lm_head", "lm_hea[d]"]
    found = first_matches("rank_pattern", ordered, NAMES)
    assert list(found.values()) == [ordered[1], ordered[0], ordered[3]]


def test_many_plain_names_are_matched_apart() -> None:
    ordered = [f"p{at}" for at in range(patterns.PLAIN_MAX)]
    assert first_matches("rank_pattern", ordered, ["h.p7", "p"]) == {"h.p7": "p7"}
    assert first_matches("rank_pattern", [*ordered, "p"], ["h.p7", "p"]) == {"h.p7": "p7", "p": "p"}


@pytest.mark.parametrize("pattern", ["(", "*", "a{99999999999}", "(?P<x>a)(?P<x>b)", "\ud800["])
def test_what_is_no_regular_expression_is_refused(pattern: str) -> None:
    with pytest.raises(AdapterInvalid, match="is no regular expression") as caught:
        first_matches("alpha_pattern", [pattern], NAMES)
    assert caught.value.param == "alpha_pattern"


@pytest.mark.parametrize(
    "pattern",
    [r"(\w+)*(\w+)*\d#", "(.*.*.*)*(.*.*.*)*#", "((a|aa)+)+#"],
)
def test_a_pattern_that_takes_for_ever_is_given_up(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "TIMEOUT_S", 0.3)
    begun = time.monotonic()
    with pytest.raises(AdapterInvalid, match="takes longer than"):
        first_matches("rank_pattern", [pattern], ["a" * 60, *NAMES])
    assert time.monotonic() - begun < 60
