"""Loading a model with all of its weights and no others.

transformers initializes weights that a checkpoint lacks at random, and drops those that it has no
place for; both would be served as if nothing were wrong. Here they are refused by tensor name.
"""

import pickle
import re
import threading
import traceback
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

from services.worker.models.checkpoint import NO_WEIGHTS, check_checkpoint, refusal
from services.worker.models.staging import staged_to
from shared.errors import ConfigError

# A pooled output that none of the tasks here asks a model for.
POOLER = re.compile(r"(^|\.)pooler\.")
# Heads of tasks that an encoder was trained for, beside its body.
HEADS = re.compile(
    r"^(cls|lm_head|lm_predictions|mask_predictions|predictions|sop_classifier|classifier|score|"
    r"qa_outputs|discriminator_predictions|generator_predictions|generator_lm_head|pred_layer|"
    r"vocab_transform|vocab_layer_norm|vocab_projector|pre_classifier|head|decoder)\."
)
# Parts for images and sounds, of a model of which the text model alone is loaded.
OTHER_SENSES = re.compile(
    r"(^|\.)(vision_tower|vision_model|vision_encoder|visual|image_newline|multi_modal_projector|"
    r"mm_projector|multimodal_projector|embed_vision|audio_tower|audio_encoder|embed_audio)(\.|$)"
)
PREDICTED_LAYERS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
# Held while a model loads: transformers then replaces a method of its base class and sets torch's
# default dtype, for all threads. Two that overlapped would leave later models' weights untied.
_LOADING = threading.Lock()


def load_weights(
    auto: Any, source: str, *, is_encoder: bool = False, device: str = "", **arguments: Any
) -> Any:
    """A model of transformers, with every weight from its checkpoint.

    Args:
        auto: class of transformers to load it by.
        source: folder or hub id.
        is_encoder: the model's body alone is asked for, and its heads may be left over.
        device: to read weights straight to; empty: they stay in host memory, mapped from their
            files where no dtype is changed; `meta`: nothing of them is read but their headers.
        arguments: of `from_pretrained`.

    Raises:
        ConfigError: the checkpoint cannot be read, or a weight is missing, left over, or of
            another shape; by its name.
    """
    from safetensors import SafetensorError

    try:
        check_checkpoint(source)
        with _LOADING, staged_to(device) if device else nullcontext():
            module, found = auto.from_pretrained(
                source, output_loading_info=True, ignore_mismatched_sizes=True,
                device_map={"": device} if device else None, **arguments,
            )  # fmt: skip
    except ConfigError:
        raise
    except (
        OSError, ValueError, KeyError, RuntimeError, EOFError,
        SafetensorError, pickle.UnpicklingError,
    ) as error:  # fmt: skip
        if names := _unconverted(error):
            raise refusal(source, names, "cannot be put together from the checkpoint") from error
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"cannot load model {source!r}: {first_line}") from error
    check_loaded(source, module, found, is_encoder=is_encoder)
    return module


def check_loaded(
    source: str, module: Any, found: Mapping[str, Iterable[Any]], *, is_encoder: bool
) -> None:
    """See that a model has all of its weights, and its checkpoint no others.

    Args:
        found: what transformers reports of the loading.

    Raises:
        ConfigError: names the tensors.
    """
    if other := sorted(found["mismatched_keys"], key=lambda each: str(each[0])):
        _, has, wants = other[0]
        shapes = f"is {list(has)} in the checkpoint, {list(wants)} in the model"
        raise refusal(source, [str(each[0]) for each in other], f"of another shape: it {shapes}")
    missing = [
        name
        for name in found["missing_keys"]
        if not (NO_WEIGHTS.search(name) or (is_encoder and POOLER.search(name)))
    ]
    if missing:
        raise refusal(source, missing, "missing in the checkpoint")
    left = [
        name
        for name in found["unexpected_keys"]
        if not _may_be_left(name, module.config, is_encoder=is_encoder)
    ]
    if left:
        raise refusal(source, left, "left over: the model has no place for it")


def _may_be_left(name: str, config: Any, *, is_encoder: bool) -> bool:
    """Whether a tensor without a place is of a part that the task does not use."""
    if NO_WEIGHTS.search(name) or POOLER.search(name):
        return True
    if is_encoder and HEADS.match(name):
        return True
    if OTHER_SENSES.search(name):
        return True
    text = config.get_text_config()
    predicted = max(int(getattr(text, key, 0) or 0) for key in PREDICTED_LAYERS)
    if not predicted:
        return False
    if layer := re.search(r"(?:^|\.)layers\.(\d+)\.", name):
        return 0 <= int(layer[1]) - int(text.num_hidden_layers) < predicted
    return name.startswith(("mtp.", "model.mtp."))


def _unconverted(error: BaseException) -> list[str]:
    """Tensors that transformers could not put together, such as experts of which one is missing.

    Its error does not say which; the record that it was raised by does.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        info = frame.f_locals.get("loading_info")
        if names := getattr(info, "conversion_errors", None):
            return [str(name) for name in names]
    return []
