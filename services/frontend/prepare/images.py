"""A chat's images: for a model that takes them, as files in base64."""

from collections.abc import Sequence
from dataclasses import replace

from services.frontend.models.images import data_url_bytes
from services.frontend.models.registry import ServedModel
from services.frontend.prepare.messages import IMAGE_PART, only_text
from services.frontend.prepare.requests import GenerationRequest, Image
from shared.errors import InvalidRequest
from shared.wire.images import IMAGE_BYTES_MAX, IMAGES_MAX


def image_files(images: Sequence[Image], model: ServedModel) -> list[str]:
    """The images' files, in base64.

    Raises:
        InvalidRequest: names the image that is not taken.
    """
    if images and not model.card.takes_images:
        raise only_text(images[0].where, IMAGE_PART)
    if len(images) > IMAGES_MAX:
        raise InvalidRequest(f"messages: more than {IMAGES_MAX} images", "messages")
    left, files = IMAGE_BYTES_MAX, []
    for image in images:
        where = f"{image.where}.{IMAGE_PART}.url"
        try:
            left -= len(data_url_bytes(image.url, IMAGE_BYTES_MAX))
        except InvalidRequest as error:
            raise InvalidRequest(f"{where}: {error.message}", where) from None
        if left < 0:
            raise InvalidRequest(
                f"{where}: all images take more than {IMAGE_BYTES_MAX} bytes", where
            )
        files.append(image.url.partition(",")[2])
    return files


def without_session(asked: GenerationRequest) -> GenerationRequest:
    """A request with images. KV is known by tokens, which different images have in common: none of
    it is kept, or looked for.

    Raises:
        InvalidRequest: it asks for what is not there with images.
    """
    for name, value in (
        ("truncate_prompt_tokens", asked.truncation),
        ("prompt_logprobs", asked.sampling.prompt_logprobs),
    ):
        if value is not None:
            raise InvalidRequest(f"{name}: not together with images", name, "unsupported_value")
    owner, turn = replace(asked.owner, session_id=None), replace(asked.turn, agent=None)
    return replace(asked, owner=owner, turn=turn)
