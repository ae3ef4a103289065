"""Images of turns, before vLLM gets them."""

import base64
import io

import pytest
from PIL import Image

from services.worker.vllm import images
from shared.errors import InvalidRequest


def file_of(size: tuple[int, int], mode: str = "RGB", kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind)
    return base64.b64encode(buffer.getvalue()).decode()


def test_images_come_in_order_and_in_colour() -> None:
    made = images.decode_images([file_of((2, 3), "L"), file_of((5, 4), "RGBA"), file_of((1, 1))])
    assert [(image.mode, image.size) for image in made] == [
        ("RGB", (2, 3)), ("RGB", (5, 4)), ("RGB", (1, 1)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ([file_of((2, 2)), base64.b64encode(b"no image").decode()], "image 1: it cannot be read"),
        ([file_of((2, 2), kind="TIFF")], "image 0: it cannot be read"),
        ([file_of((2, 2))[:40]], "image 0: it cannot be read"),
        ([file_of((8, 8)), file_of((7, 7))], "image 1: all images have more than 100 pixels"),
        ([file_of((1, 1))] * 17, "too many"),
        (["A" * 8_000_000], "too large"),
    ],
    ids=["text", "kind", "cut", "pixels", "many", "large"],
)
def test_any_other_is_refused(monkeypatch: pytest.MonkeyPatch, files: list[str], word: str) -> None:
    monkeypatch.setattr(images, "IMAGE_PIXELS_MAX", 100)
    with pytest.raises(InvalidRequest, match=word) as caught:
        images.decode_images(files)
    assert caught.value.code == "engine_refused"
