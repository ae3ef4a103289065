"""Inputs of text and image models: from the wire to arrays, checked, and from arrays to a batch."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.worker.oneshot.files import read_json
from shared.errors import ConfigError, InvalidRequest
from shared.image_size import image_size
from shared.wire.messages import JobInput

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
UNSUPPORTED_PROCESSORS = ("levit", "perceiver")  # they resize and crop in ways of their own
PROCESSORS_OF_KEYS = {  # what each key means is known of these processors only
    "do_flip_channel_order": "mobilevit",
    "include_top": "efficientnet",
    "rescale_offset": "efficientnet",
}


@dataclass(frozen=True, slots=True)
class Text:
    """Attributes:
    tokens: ``[tokens]`` int32.
    segments: ``[tokens]`` int32, or None for all zero.
    """

    tokens: npt.NDArray[np.int32]
    segments: npt.NDArray[np.int32] | None


Pixels = npt.NDArray[np.uint8]
Channels = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextInputs:
    """Attributes:
    vocab_size: tokens are below it.
    num_segments: kinds of segments; 0: the model does not look at them.
    pad_token: what fills the rest of a row.
    tokens_max: longest input that the model can take.
    """

    vocab_size: int
    num_segments: int
    pad_token: int
    tokens_max: int

    def decode(self, job: JobInput, variant: int) -> Text:
        """See `OneshotModel.decode`."""
        tokens = _ints(job.tokens, "tokens")
        if not 0 < len(tokens) <= variant:
            raise InvalidRequest(f"{len(tokens)} tokens: this batch takes 1 to {variant}")
        # A GPU that is asked for an embedding it does not have fails for good.
        _check_below(tokens, self.vocab_size, "token")
        if not (job.segments and self.num_segments):
            return Text(tokens, None)
        segments = _ints(job.segments, "segments")
        if len(segments) != len(tokens):
            raise InvalidRequest(f"{len(segments)} segments for {len(tokens)} tokens")
        _check_below(segments, self.num_segments, "segment")
        return Text(tokens, segments)

    def batch(
        self, inputs: Sequence[Text], variant: int, device: torch.device
    ) -> dict[str, torch.Tensor]:
        """The model's arguments, ``[inputs, variant]`` each, padded on the right."""
        shape = (len(inputs), variant)
        tokens = np.full(shape, self.pad_token, np.int64)
        segments = np.zeros(shape, np.int64)
        mask = np.zeros(shape, np.int64)
        for row, text in enumerate(inputs):
            length = len(text.tokens)
            tokens[row, :length] = text.tokens
            mask[row, :length] = 1
            if text.segments is not None:
                segments[row, :length] = text.segments
        arrays = {"input_ids": tokens, "attention_mask": mask}
        if self.num_segments:
            arrays["token_type_ids"] = segments
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

    def sample(self, size: int, variant: int) -> list[Text]:
        """Random inputs that fill the variant, but for one token: without any padding some models
        take a faster way that real batches seldom find.
        """
        rng = np.random.Generator(np.random.Philox(variant))
        length = max(variant - 1, 1)
        tokens = rng.integers(0, self.vocab_size, (size, length), np.int32)
        tokens[tokens == self.pad_token] = (self.pad_token + 1) % self.vocab_size
        return [Text(row, None) for row in tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInputs:
    """Attributes:
    height, width: of every image.
    scale, shift: a channel's value is ``scale * byte + shift``.
    is_bgr: the model's channels, and so scale and shift, are blue, green, red.
    dtype: of the model.
    """

    height: int
    width: int
    scale: Channels
    shift: Channels
    is_bgr: bool
    dtype: torch.dtype

    def decode(self, job: JobInput, variant: int) -> Pixels:
        """See `OneshotModel.decode`."""
        if (job.height, job.width) != (self.height, self.width):
            raise InvalidRequest(
                f"an image of {job.height} x {job.width}: the model takes "
                f"{self.height} x {self.width}"
            )
        data = _bytes(job.pixels, "pixels")
        if len(data) != self.height * self.width * 3:
            raise InvalidRequest(f"{len(data)} bytes are no image of {job.height} x {job.width}")
        return np.frombuffer(data, np.uint8).reshape(self.height, self.width, 3)

    def batch(
        self, inputs: Sequence[Pixels], variant: int, device: torch.device
    ) -> dict[str, torch.Tensor]:
        """``pixel_values`` ``[inputs, 3, height, width]``, normalised on the device, which gets a
        quarter of the bytes so.
        """
        pixels = torch.from_numpy(np.stack(inputs)).to(device)
        if self.is_bgr:
            pixels = pixels.flip(-1)
        scale = torch.tensor(self.scale, device=device)
        shift = torch.tensor(self.shift, device=device)
        return {"pixel_values": (pixels * scale + shift).to(self.dtype).permute(0, 3, 1, 2)}

    def sample(self, size: int, variant: int) -> list[Pixels]:
        """Random images."""
        rng = np.random.Generator(np.random.Philox(size))
        shape = (size, self.height, self.width, 3)
        return list(rng.integers(0, 256, shape, np.uint8))


def load_image_inputs(source: str, dtype: torch.dtype) -> ImageInputs:
    """What ``preprocessor_config.json`` says of sizes and normalisation.

    Raises:
        ConfigError: there is none, it names no size, or it asks for something else that is not
            done here.
    """
    config = read_json(source, "preprocessor_config.json")
    if config is None:
        raise ConfigError(f"{source}: no preprocessor_config.json says what its images are")
    try:
        size = image_size(config)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
    kind = _processor_kind(source, config)
    scale, shift = _normalisation(kind, config)
    return ImageInputs(
        height=size.height,
        width=size.width,
        scale=scale,
        shift=shift,
        is_bgr=kind.startswith("mobilevit") and bool(config.get("do_flip_channel_order", True)),
        dtype=dtype,
    )


def _normalisation(kind: str, config: Mapping[str, Any]) -> tuple[Channels, Channels]:
    """Scale and shift of each channel."""
    is_efficientnet = kind.startswith("efficientnet")
    factor, offset = 1.0, 0.0
    if config.get("do_rescale", True):
        factor = float(config.get("rescale_factor", 1 / 255))
        offset = -1.0 if is_efficientnet and config.get("rescale_offset") else 0.0
    # MobileViT's processor never normalises, whatever its file says.
    if kind.startswith("mobilevit"):
        return (factor,) * 3, (offset,) * 3
    means: Channels = (0.0,) * 3
    divisors: Channels = (1.0,) * 3
    stds = _channels(config.get("image_std") or IMAGENET_STD)
    if config.get("do_normalize", True):
        means = _channels(config.get("image_mean") or IMAGENET_MEAN)
        divisors = stds
    if is_efficientnet and config.get("include_top", True):
        # Its classifiers were trained on what is divided twice.
        divisors = tuple(divisor * std for divisor, std in zip(divisors, stds, strict=True))
    return (
        tuple(factor / divisor for divisor in divisors),
        tuple((offset - mean) / divisor for mean, divisor in zip(means, divisors, strict=True)),
    )


def _processor_kind(source: str, config: Mapping[str, Any]) -> str:
    """The class of the model's own processor, or its model's type, in small letters.

    Raises:
        ConfigError: it makes something of an image that is not made here.
    """
    kind = str(
        config.get("image_processor_type")
        or config.get("feature_extractor_type")
        or (read_json(source, "config.json") or {}).get("model_type", "")
    )
    lower = kind.lower()
    if lower.startswith(UNSUPPORTED_PROCESSORS):
        raise ConfigError(f"{source}: images cut as {kind} does it are not supported")
    for key, owner in PROCESSORS_OF_KEYS.items():
        if config.get(key) and not lower.startswith(owner):
            raise ConfigError(f"{source}: {key} is not supported for {kind!r}")
    return lower


def _channels(values: float | Sequence[float]) -> Channels:
    if isinstance(values, int | float):
        return (float(values),) * 3
    if len(values) != 3:
        raise ConfigError(f"images of {len(values)} channels are not supported")
    return tuple(map(float, values))


def _ints(text: str, what: str) -> npt.NDArray[np.int32]:
    data = _bytes(text, what)
    if len(data) % 4:
        raise InvalidRequest(f"{what}: not a whole number of integers")
    return np.frombuffer(data, "<i4")


def _bytes(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{what}: {error}") from None


def _check_below(values: npt.NDArray[np.int32], limit: int, what: str) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= limit:
        raise InvalidRequest(f"{what} {low if low < 0 else high}: the model has {limit}")
