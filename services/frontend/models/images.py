"""Images as a model takes them: decoded, resized and cropped as its own files say.

What comes out is uint8 [height, width, 3]; the worker normalises.
"""

import base64
import binascii
import io
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from shared.errors import InvalidRequest
from shared.image_size import image_size

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# The limit is `ImageProcessor.decode`'s own; Pillow's would only warn.
Image.MAX_IMAGE_PIXELS = None


class TooManyPixels(InvalidRequest):
    """An image is larger than is taken."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """An image, decoded.

    Attributes:
        data: base64 of uint8 [height, width, 3].
    """

    data: str
    height: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProcessor:
    """How a model wants its images.

    Attributes:
        height, width: of every image that comes out.
        resize_to: what an image becomes before its middle is cut out: its shorter edge, or its
            height and width, which may squeeze it.
        resample: Pillow's number of a filter.
    """

    height: int
    width: int
    resize_to: int | tuple[int, int]
    resample: int = Image.Resampling.BILINEAR

    @property
    def num_bytes(self) -> int:
        """Length of `Pixels.data`."""
        return (self.height * self.width * 3 + 2) // 3 * 4

    def decode(self, data: bytes, pixels_max: int) -> Pixels:
        """An image file as the model takes it. Blocks for milliseconds: call it in a thread. That
        holds at most four images of the largest size: as decoded, with its transparency, on white,
        resized; each at up to 4 bytes a pixel. Most need two.

        Args:
            pixels_max: a file whose header says more is not decoded.

        Raises:
            TooManyPixels: nothing was decoded yet.
            InvalidRequest: no image, or a broken one.
        """
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
                if width * height > pixels_max:
                    raise TooManyPixels(
                        f"the image has {width} x {height} pixels; at most {pixels_max} are taken"
                    )
                if math.prod(self._resized(image.size)) > pixels_max:
                    raise TooManyPixels(f"the image is too narrow: {width} x {height} pixels")
                ready = self.fit(_rgb(image))
        except (OSError, ValueError, SyntaxError, IndexError, struct.error) as error:
            kinds = ", ".join(FORMATS)
            raise InvalidRequest(f"not an image that can be read ({kinds}): {error}") from None
        return Pixels(base64.b64encode(ready.tobytes()).decode("ascii"), self.height, self.width)

    def fit(self, image: Image.Image) -> Image.Image:
        """An RGB image in the size of the model; what a crop misses is black."""
        width, height = self._resized(image.size)
        left, top = (width - self.width) // 2, (height - self.height) // 2
        resized = image.resize((width, height), Image.Resampling(self.resample))
        return resized.crop((left, top, left + self.width, top + self.height))

    def _resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height before the crop."""
        if not isinstance(self.resize_to, int):
            return self.resize_to[1], self.resize_to[0]
        short = min(size)
        width, height = (int(self.resize_to * edge / short) for edge in size)
        return width, height


def data_url_bytes(url: str, bytes_max: int) -> bytes:
    """The bytes of a ``data:`` URL. Nothing else is fetched: a server that opens addresses which
    its clients name opens those of its own network too.

    Raises:
        InvalidRequest: another kind of URL, not base64, or too long.
    """
    head, comma, text = url.partition(",")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        raise InvalidRequest("only URLs of the form data:image/png;base64,... are taken")
    if len(text) * 3 // 4 > bytes_max:
        raise InvalidRequest(f"the image is larger than {bytes_max} bytes")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"the image's base64: {error}") from None


def load_image_processor(source: str) -> ImageProcessor:
    """Read ``preprocessor_config.json`` of a folder or hub id. Blocks.

    Raises:
        OSError: not there.
        ValueError: it says something that cannot be done here.
    """
    from transformers.image_processing_base import ImageProcessingMixin

    config, _ = ImageProcessingMixin.get_image_processor_dict(source)
    return image_processor(config)


def image_processor(config: Mapping[str, Any]) -> ImageProcessor:
    """What a model's ``preprocessor_config.json`` asks for.

    Raises:
        ValueError: no size is given.
    """
    size = image_size(config)
    named = config.get("resample")
    resample = int(Image.Resampling.BILINEAR if named is None else named)
    return ImageProcessor(
        height=size.height, width=size.width, resize_to=size.resize_to, resample=resample
    )


def _rgb(image: Image.Image) -> Image.Image:
    """The first frame, upright, on white where it is transparent; it may be `image` itself."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):
        return _grey(image).convert("RGB")
    if image.has_transparency_data:
        seen = image if image.mode == "RGBA" else image.convert("RGBA")
        ground = Image.new("RGB", image.size, "white")
        ground.paste(seen, mask=seen)
        return ground
    return image if image.mode == "RGB" else image.convert("RGB")


def _grey(image: Image.Image) -> Image.Image:
    """Eight bits of sixteen: Pillow's own conversion would make white of all but the darkest."""
    values = np.clip(np.asarray(image), 0, 65_535)
    return Image.fromarray((values >> 8).astype(np.uint8))
