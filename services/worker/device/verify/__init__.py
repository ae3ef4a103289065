"""A family of models is served only if it was held right: small models of the same config, with
random weights, give the log-probabilities that transformers gives.

`verify_family` is what a load calls. It remembers what was right, so that a start pays once for
each kind of config and version of the code.
"""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from services.worker.device.verify.record import Checked, Records, default_folder, key_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from services.worker.device.layers import Mode

log = logging.getLogger(__name__)

__all__ = ["Checked", "verify_family", "verify_source"]


def verify_source(
    source: str, layers: "Mode" = "fast", device: str = "", dtype: str = ""
) -> Checked | None:
    """`verify_family` of a model's folder or hub id, by its config alone.

    Args:
        layers, device, dtype: as in `load_model`; what needs compiled kernels for float32 anyway is
            verified with them.

    Returns:
        None: transformers has no decoder for such a config.

    Raises:
        UnsupportedModelError: as `verify_family`.
        OSError, ValueError, KeyError: the config cannot be read.
    """
    import torch
    from transformers import AutoConfig

    from services.worker.device.verify.reasons import model_class

    config = AutoConfig.from_pretrained(source)
    if model_class(config) is None:
        return None
    own = getattr(config.get_text_config(), "dtype", None)
    is_float32 = dtype == "float32" or (dtype == "auto" and own == torch.float32)
    return verify_family(config, layers, is_compiled=device == "cpu" and is_float32)


def verify_family(
    config: "PreTrainedConfig",
    layers: "Mode" = "fast",
    *,
    is_compiled: bool = False,
    folder: Path | None = None,
) -> Checked:
    """See that models of this config are computed as transformers computes them, or know that they
    were.

    Args:
        layers: as in `load_model`.
        is_compiled: with compiled kernels for float32, which the model itself needs anyway.
        folder: of what was right before; by default this user's.

    Raises:
        UnsupportedModelError: they are not, or it cannot be verified; names the family, and why.
    """
    from services.worker.device.verify.cut import cut_candidates

    candidates = cut_candidates(config)
    mode = f"{layers}, {'compiled' if is_compiled else 'plain'} kernels"
    records = Records(folder or default_folder())
    key = key_of((each.identity() for each in candidates), mode)
    if (kept := records.get(key)) is not None:
        return kept
    from services.worker.device.verify.check import check

    started_at = time.monotonic()
    checked = check(config, candidates, layers, is_compiled=is_compiled)
    took_s = round(time.monotonic() - started_at, 3)
    checked = checked.model_copy(update={"took_s": took_s})
    log.info("verified against transformers", extra=checked.model_dump())
    records.put(key, checked)
    return checked
