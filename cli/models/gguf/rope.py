"""How positions turn queries and keys: from a GGUF file to transformers' `rope_parameters`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cli.models.gguf.reading import Reading
from shared.errors import ConfigError

DIVISORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
KINDS = ("none", "linear", "yarn", "longrope")
# Llama 3.1 to 3.3, the only known models whose divisors are made by transformers' type `llama3`.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_CONTEXT = 8192


def read_rope(
    reading: Reading, head_dim: int, *, can_be_partial: bool = False, has_divisors: bool = False
) -> dict[str, Any]:
    """The `rope_parameters` of a model, or of its layers with global attention.

    Args:
        can_be_partial: the model may turn a part of each head only.
        has_divisors: the architecture computes with divisors of frequencies in the file.

    Raises:
        ConfigError: a key or tensor asks for what transformers does not compute.
    """
    keys = reading.keys
    num_turned = keys.integer("rope.dimension_count", head_dim)
    parameters: dict[str, Any] = {"rope_theta": keys.number("rope.freq_base", 10000.0)}
    if num_turned != head_dim:
        if not can_be_partial or not 0 < num_turned < head_dim:
            raise keys.refusal("rope.dimension_count", f"heads have {head_dim} dimensions")
        parameters["partial_rotary_factor"] = num_turned / head_dim
    parameters |= _scaling(reading, parameters["rope_theta"], num_turned, has_divisors)
    return parameters


def no_scaling(reading: Reading) -> None:
    """Of an architecture whose positions are never scaled.

    Raises:
        ConfigError: the file says that they are.
    """
    keys = reading.keys
    keys.require("rope.scaling.type", "none", why="positions of this architecture are not scaled")
    for key in ("rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor"):
        keys.require(key, 0, 1, why="positions of this architecture are not scaled")
    keys.ignore("rope.scaling.finetuned", "rope.scaling.original_context_length")


def _scaling(reading: Reading, theta: float, num_turned: int, has_divisors: bool) -> dict[str, Any]:
    keys = reading.keys
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in KINDS:
        raise keys.refusal("rope.scaling.type", f"is none of {', '.join(KINDS)}")
    # llama.cpp takes the old key where the new one is missing, and 0 as 1.
    old = keys.number("rope.scale_linear", 0.0)
    factor = keys.number("rope.scaling.factor", old) or 1.0
    attention = keys.number("rope.scaling.attn_factor", 1.0)
    keys.ignore("rope.scaling.finetuned")  # whether it was trained so, or is only run so
    if kind == "none" and factor != 1.0:
        raise keys.refusal("rope.scaling.factor", "although rope.scaling.type is none")
    long = reading.absorb(LONG, num_turned // 2) if has_divisors else None
    short = reading.absorb(SHORT, num_turned // 2) if has_divisors else None
    divisors = reading.absorb(DIVISORS, num_turned // 2) if has_divisors else None
    if kind == "yarn":
        if long or short or divisors:
            raise keys.refusal("rope.scaling.type", "with divisors of frequencies as well")
        return _yarn(reading, factor, attention)
    _refuse_yarn(reading)
    if long or short:
        if divisors or factor != 1.0 or not (long and short):
            raise ConfigError(f"tensors {LONG} and {SHORT} are not the only scaling of positions")
        return _longrope(reading, long, short, attention)
    if kind == "longrope":
        raise keys.refusal("rope.scaling.type", f"but there is no tensor {LONG}")
    if attention != 1.0:
        raise keys.refusal("rope.scaling.attn_factor", f"with rope.scaling.type {kind}")
    original = keys.integer("rope.scaling.original_context_length", LLAMA3_CONTEXT)
    if divisors is not None:
        return _divided(reading, [each * factor for each in divisors], theta, original)
    return {"rope_type": "default"} if factor == 1.0 else {"rope_type": "linear", "factor": factor}


def _yarn(reading: Reading, factor: float, attention: float) -> dict[str, Any]:
    keys = reading.keys
    keys.require(
        "rope.scaling.yarn_attn_factor",
        why="converters write transformers' attention factor, llama.cpp multiplies its own by it",
    )
    keys.require("rope.scaling.yarn_ext_factor", 1, why="parts of YaRN are not supported")
    keys.require("rope.scaling.yarn_log_multiplier", 0, why="is not supported")
    context = keys.integer("context_length")
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.integer(
            "rope.scaling.original_context_length", context
        ),
        "attention_factor": attention * (0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0),
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
    }


def _refuse_yarn(reading: Reading) -> None:
    # Without YaRN nothing reads them; they are written at their defaults by some programs.
    for name, default in (("ext_factor", 0), ("attn_factor", 1), ("log_multiplier", 0)):
        reading.keys.require(
            f"rope.scaling.yarn_{name}", default, why="although rope.scaling.type is not yarn"
        )
    reading.keys.ignore("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow")


def _longrope(
    reading: Reading, long: list[float], short: list[float], attention: float
) -> dict[str, Any]:
    """Two lists of divisors, by a text's length against the original context's."""
    keys = reading.keys
    context = keys.integer("context_length")
    for key in ("rope.scaling.original_context_length", "rope.scaling.attn_factor"):
        if long != short and not keys.has(key):
            raise keys.refusal(key, f"is missing, and the file has {LONG}")
    original = keys.integer("rope.scaling.original_context_length", context)
    return {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        "factor": context / original,
        "original_max_position_embeddings": original,
        "attention_factor": attention,
    }


def _divided(
    reading: Reading, divisors: list[float], theta: float, original: int
) -> dict[str, Any]:
    """Frequencies with a divisor each: Llama 3's rule where it gives these, else the list."""
    if all(each == 1.0 for each in divisors):
        return {"rope_type": "default"}
    rule = {"factor": max(divisors), **LLAMA3, "original_max_position_embeddings": original}
    if np.allclose(llama3_divisors(theta, rule, len(divisors)), divisors, rtol=1e-5, atol=0.0):
        return {"rope_type": "llama3", **rule}
    context = reading.keys.integer("context_length")
    return {  # both lists are the same, so no length decides between them
        "rope_type": "longrope",
        "long_factor": divisors,
        "short_factor": divisors,
        "factor": 1.0,
        "original_max_position_embeddings": context,
        "attention_factor": 1.0,
    }


def llama3_divisors(theta: float, rule: dict[str, float], num: int) -> Sequence[float]:
    """What transformers' type `llama3` divides each of `num` frequencies by."""
    divisors = []
    low, high = rule["low_freq_factor"], rule["high_freq_factor"]
    for index in range(num):
        wavelength = 2 * math.pi * theta ** (index / num)
        turns = rule["original_max_position_embeddings"] / wavelength
        if turns > high:
            divisors.append(1.0)
        elif turns < low:
            divisors.append(rule["factor"])
        else:
            smooth = (turns - low) / (high - low)
            divisors.append(1.0 / ((1.0 - smooth) / rule["factor"] + smooth))
    return divisors
