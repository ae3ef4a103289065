"""Images of a turn, decoded for vLLM."""

import base64
import io
import struct
from collections.abc import Sequence

from PIL import Image, ImageOps

from services.worker.core.vllm.requests import ENGINE_REFUSED
from shared.errors import InvalidRequest
from shared.wire.images import IMAGE_BYTES_MAX, IMAGE_PIXELS_MAX, IMAGES_MAX

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def decode_images(files: Sequence[str]) -> list[Image.Image]:
    """The images of files in base64. Blocks: call it in a thread.

    Raises:
        InvalidRequest: one is no image, or they are too large together.
    """
    if len(files) > IMAGES_MAX or sum(map(len, files)) * 3 // 4 > IMAGE_BYTES_MAX + 2 * IMAGES_MAX:
        raise InvalidRequest("images: too many, or too large", code=ENGINE_REFUSED)
    left, images = IMAGE_PIXELS_MAX, []
    for at, file in enumerate(files):
        try:
            with Image.open(io.BytesIO(base64.b64decode(file)), formats=FORMATS) as image:
                left -= image.width * image.height
                if left < 0:
                    raise InvalidRequest(
                        f"image {at}: all images have more than {IMAGE_PIXELS_MAX} pixels",
                        code=ENGINE_REFUSED,
                    )
                images.append(ImageOps.exif_transpose(image).convert("RGB"))
        except (OSError, ValueError, SyntaxError, IndexError, struct.error) as error:
            why = f"image {at}: it cannot be read as one of {', '.join(FORMATS)}"
            raise InvalidRequest(why, code=ENGINE_REFUSED) from error
    return images
