"""What a model's files advise on generating: how to sample, and which tokens end a reply."""

from typing import Any

from transformers import GenerationConfig

from shared.wire.messages import SamplingDefaults

ADVISABLE = {
    "temperature": (0.01, 2.0),
    "top_p": (0.01, 1.0),
    "top_k": (1, 1 << 20),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}


def generation_config(source: str) -> GenerationConfig | None:
    """That of a folder or a hub id; None: it has none."""
    try:
        return GenerationConfig.from_pretrained(source)
    except OSError:
        return None


def end_token_ids(generation: GenerationConfig | None, config: Any) -> frozenset[int]:
    """Any of them ends a reply.

    Args:
        config: the model's, in place of what `generation` does not say.
    """
    ends = None if generation is None else generation.eos_token_id
    if ends is None:
        ends = getattr(config, "eos_token_id", None)
    if ends is None:
        return frozenset()
    return frozenset([ends] if isinstance(ends, int) else ends)


def sampling_defaults(generation: GenerationConfig | None) -> SamplingDefaults:
    """What a model's files advise; values that no request could ask for are passed over."""
    advised: dict[str, Any] = {}
    for name, (low, high) in ADVISABLE.items():
        value = getattr(generation, name, None)
        if isinstance(value, int | float) and low <= value <= high:
            advised[name] = value
    return SamplingDefaults(**advised)
