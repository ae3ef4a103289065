"""Inputs of one-shot models: as transformers itself would make them."""

import base64
import gc
import io
import json
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from services.frontend.models.images import (
    FORMATS,
    ImageProcessor,
    _rgb,
    data_url_bytes,
    image_processor,
    load_image_processor,
)
from services.frontend.rendering.tokenizer import Cut, ModelTokenizer, load_tokenizer
from shared.errors import InvalidRequest

CLS, SEP = 2, 3
PIXELS_MAX = 1_000_000


def make_tokenizer(folder: Path, *, has_segments: bool = True) -> ModelTokenizer:
    """Words ``w0`` to ``w49`` as BERT frames them; the file also says how it was trained."""
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": CLS, "[SEP]": SEP} | {
        f"w{at}": 4 + at for at in range(50)
    }
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    backend.enable_truncation(6)
    backend.enable_padding(length=9)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        unk_token="[UNK]", model_input_names=names if has_segments else names[::2],
    ).save_pretrained(folder)  # fmt: skip
    return load_tokenizer(str(folder))


def make_slow(tokenizer: ModelTokenizer) -> None:
    """As if transformers had no fast form of it."""
    tokenizer._backend = None


def words(*numbers: int) -> str:
    return " ".join(f"w{number}" for number in numbers)


def ids(*numbers: int) -> list[int]:
    return [4 + number for number in numbers]


def test_texts_and_pairs_are_framed_and_never_padded(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    long = list(range(20))
    first, second = tokenizer.encode_inputs(
        [words(1, 2), words(*long)], None, special=True, cut=Cut()
    )
    assert first.tokens == [CLS, *ids(1, 2), SEP] and first.segments == []
    assert second.tokens == [CLS, *ids(*long), SEP]
    (bare,) = tokenizer.encode_inputs([words(1)], None, special=False, cut=Cut())
    assert bare.tokens == ids(1)
    query = tokenizer.encode_query(words(1, 2))
    (pair,) = tokenizer.encode_inputs([words(3)], query, special=True, cut=Cut())
    assert pair.tokens == [CLS, *ids(1, 2), SEP, *ids(3), SEP]
    assert pair.segments == [0, 0, 0, 0, 1, 1]


def test_only_texts_are_cut_and_stay_framed(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, has_segments=False)
    text = words(*range(9))
    (cut,) = tokenizer.encode_inputs([text], None, special=True, cut=Cut(5))
    assert cut.tokens == [CLS, *ids(0, 1, 2), SEP]
    query = tokenizer.encode_query(words(7, 8))
    assert query.tokens == ids(7, 8)
    (pair,) = tokenizer.encode_inputs([text], query, special=True, cut=Cut(7))
    assert pair.tokens == [CLS, *ids(7, 8), SEP, *ids(0, 1), SEP] and pair.segments == []


def test_the_end_can_be_kept(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    text, cut = words(*range(9)), Cut(5, keep_end=True)
    assert tokenizer.encode_inputs([text], None, special=True, cut=cut)[0].tokens == [
        CLS, *ids(6, 7, 8), SEP
    ]  # fmt: skip
    assert cut.of([1, 2, 3, 4, 5, 6]) == [2, 3, 4, 5, 6] and cut.of([1]) == [1]
    make_slow(tokenizer)
    with pytest.raises(InvalidRequest) as caught:
        tokenizer.encode_inputs([text], None, special=True, cut=cut)
    assert caught.value.param == "truncation_side"


@pytest.mark.parametrize("is_fast", [True, False])
def test_documents_are_cut_and_their_query_is_not(tmp_path: Path, is_fast: bool) -> None:
    tokenizer = make_tokenizer(tmp_path)
    if not is_fast:
        make_slow(tokenizer)
    query = tokenizer.encode_query(words(7, 8, 9))
    texts = [words(*range(6)), words(1)]
    for cut, kept in ((Cut(text_max=2), 2), (Cut(9, text_max=2), 2), (Cut(7, text_max=5), 1)):
        long, short = tokenizer.encode_inputs(texts, query, special=True, cut=cut)
        assert long.tokens == [CLS, *ids(7, 8, 9), SEP, *ids(*range(kept)), SEP]
        assert short.tokens == [CLS, *ids(7, 8, 9), SEP, *ids(1), SEP]


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_cut_that_would_leave_nothing_is_refused(tmp_path: Path, is_fast: bool) -> None:
    tokenizer = make_tokenizer(tmp_path)
    if not is_fast:
        make_slow(tokenizer)
    query = tokenizer.encode_query(words(7, 8))
    for pair_of, special, num_fixed in (
        (None, True, 2), (query, True, 5), (query, False, 2), (None, False, 0)
    ):  # fmt: skip
        made = tokenizer.encode_inputs(
            [words(1, 2)], pair_of, special=special, cut=Cut(num_fixed + 1)
        )
        assert len(made[0].tokens) == num_fixed + 1
        for cut_to in range(1, num_fixed + 1):
            with pytest.raises(InvalidRequest, match=f"truncate_prompt_tokens.* {num_fixed} ") as e:
                tokenizer.encode_inputs([words(1)], pair_of, special=special, cut=Cut(cut_to))
            assert e.value.param == "truncate_prompt_tokens"
            assert ("query" in e.value.message) == (pair_of is not None)
            assert tokenizer.encode_inputs([], pair_of, special=special, cut=Cut(cut_to)) == []


def test_without_a_fast_backend_it_is_the_same(tmp_path: Path) -> None:
    fast = make_tokenizer(tmp_path)
    slow = make_tokenizer(tmp_path)
    make_slow(slow)
    for query in (None, words(7, 8)):
        for cut_to in (None, 7, 9, 40):
            texts = [words(*range(9)), words(1)]
            made = []
            for tokenizer in (fast, slow):
                first = None if query is None else tokenizer.encode_query(query)
                made.append(tokenizer.encode_inputs(texts, first, special=True, cut=Cut(cut_to)))
            assert made[0] == made[1], (query, cut_to)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


def file_of(image: Image.Image, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def pixels(processor: ImageProcessor, data: bytes) -> npt.NDArray[np.uint8]:
    made = processor.decode(data, PIXELS_MAX)
    assert len(made.data) == processor.num_bytes
    flat = np.frombuffer(base64.b64decode(made.data), np.uint8)
    return flat.reshape(made.height, made.width, 3)


PROCESSORS: list[tuple[str, dict[str, Any]]] = [
    ("ViTImageProcessorPil", {"size": {"height": 20, "width": 24}}),
    ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 28}}),
    ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 384}}),
    ("CLIPImageProcessorPil", {"size": {"shortest_edge": 30}, "crop_size": 26}),
    ("DeiTImageProcessorPil", {"size": {"height": 32, "width": 40}, "crop_size": 26}),
    ("CLIPImageProcessorPil", {"size": {"shortest_edge": 20}, "crop_size": 26}),
]


@pytest.mark.parametrize(("kind", "options"), PROCESSORS)
@pytest.mark.parametrize("size", [(61, 40), (40, 61), (33, 33)])
def test_pixels_are_those_of_the_models_own_processor(
    kind: str, options: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = getattr(transformers, kind)(**options)
        theirs.save_pretrained(tmp_path)
        image = picture(*size)
        batch = theirs(image, do_rescale=False, do_normalize=False, return_tensors="np")
    expected = np.transpose(batch["pixel_values"][0], (1, 2, 0))
    got = pixels(load_image_processor(str(tmp_path)), file_of(image))
    assert got.shape == expected.shape
    assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1


def test_a_filter_that_is_not_named_is_bilinear() -> None:
    plain = image_processor({"size": 32, "resample": None})
    assert (plain.resize_to, plain.resample) == ((32, 32), Image.Resampling.BILINEAR)
    resnet = image_processor({"size": 224, "crop_pct": 0.875, "resample": 3})
    assert (resnet.resize_to, resnet.height, resnet.resample) == (256, 224, 3)


def test_every_format_and_mode_becomes_rgb() -> None:
    processor = image_processor({"size": 8})
    for kind in FORMATS:
        assert pixels(processor, file_of(picture(16, 16), kind)).shape == (8, 8, 3)
    for mode in ("L", "LA", "RGBA", "P", "1"):
        assert pixels(processor, file_of(picture(16, 16).convert("L").convert(mode))).any()


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_sixteen_bits_of_grey_become_eight(mode: str) -> None:
    kind = np.dtype({"I;16": "<u2", "I;16B": ">u2", "I": "<i4"}[mode])
    values = np.array([[0, 255, 256, 32_768, 65_535]], kind)
    image = Image.frombytes(mode, (5, 1), values.tobytes())
    greys = [[grey] * 3 for grey in (0, 0, 1, 128, 255)]
    assert np.asarray(_rgb(image))[0].tolist() == greys
    if mode != "I":  # what older releases of Pillow open and save them as
        got = pixels(image_processor({"size": {"height": 1, "width": 5}}), file_of(image))
        assert got[0].tolist() == greys


def test_what_shines_through_is_white() -> None:
    processor = image_processor({"size": {"height": 1, "width": 3}})
    clear = Image.new("RGBA", (3, 1))
    for at, alpha in enumerate((0, 255, 51)):
        clear.putpixel((at, 0), (0, 0, 0, alpha))
    grey = [[255] * 3, [0] * 3, [204] * 3]
    for image in (clear, clear.convert("LA")):
        assert pixels(processor, file_of(image))[0].tolist() == grey
        assert pixels(processor, file_of(image, "WEBP"))[0, :2].tolist() == grey[:2]
    palette = Image.new("P", (3, 1), 1)
    palette.putpalette([9, 9, 9, 0, 0, 200])
    palette.putpixel((0, 0), 0)
    plain = Image.new("RGB", (3, 1), (0, 0, 200))
    plain.putpixel((0, 0), (9, 9, 9))
    hidden: list[tuple[Image.Image, Any, str]] = [
        (palette, 0, "PNG"), (palette, 0, "GIF"), (palette, b"\0\xff", "PNG"),
        (plain, (9, 9, 9), "PNG"),
    ]  # fmt: skip
    for image, transparency, kind in hidden:
        out = io.BytesIO()
        image.save(out, kind, transparency=transparency)
        got = pixels(processor, out.getvalue())[0].tolist()
        assert got == [[255] * 3, [0, 0, 200], [0, 0, 200]], (image.mode, kind)


def test_an_upright_image_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of(picture(8, 8))

    real = Image.Image.copy

    def copy(image: Image.Image) -> Image.Image:
        assert image.size != (8, 8)
        return real(image)

    monkeypatch.setattr(Image.Image, "copy", copy)
    assert pixels(image_processor({"size": 4}), data).shape == (4, 4, 3)


def test_images_are_turned_upright() -> None:
    image = Image.new("RGB", (8, 4))
    image.paste((255, 255, 255), (0, 0, 4, 4))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    out = io.BytesIO()
    image.save(out, "PNG", exif=exif)
    got = pixels(image_processor({"size": {"height": 4, "width": 8}}), out.getvalue())
    assert got[0, 7, 0] == 255 and got[0, 0, 0] == 0


def test_images_that_are_too_large_are_not_decoded() -> None:
    processor = image_processor({"size": {"shortest_edge": 100}})
    for width, height in ((2000, 501), (20_000, 1)):
        with pytest.raises(InvalidRequest, match=f"{width} x {height}"):
            processor.decode(file_of(Image.new("1", (width, height))), PIXELS_MAX)


@given(st.sampled_from(FORMATS), st.integers(0, 400), st.binary(max_size=8))
@settings(max_examples=120, deadline=None)
def test_a_broken_file_is_the_senders_fault(kind: str, at: int, junk: bytes) -> None:
    data = file_of(picture(9, 9), kind)
    processor = image_processor({"size": 8})
    for broken in (data[:at], data[:at] + junk + data[at + len(junk) :], junk):
        with suppress(InvalidRequest):
            processor.decode(broken, PIXELS_MAX)


def test_only_data_urls_are_read() -> None:
    assert data_url_bytes("data:image/png;base64,AAEC", 3) == b"\0\1\2"
    for url in (
        "http://127.0.0.1:6379/", "file:///etc/passwd", "data:text/html;base64,AAEC", "AAEC",
        "data:image/png,AAEC", "data:image/png;base64,A", "data:image/png;base64,AAEC\u00e4",
        "data:image/png;base64,AAECAAEC",
    ):  # fmt: skip
        with pytest.raises(InvalidRequest):
            data_url_bytes(url, 3)


def test_a_folder_without_files_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="preprocessor_config"):
        load_image_processor(str(tmp_path))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": {"longest_edge": 9}}))
    with pytest.raises(ValueError, match="names no size"):
        load_image_processor(str(tmp_path))


def test_a_tokenizer_that_nobody_holds_is_gone_at_once(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    assert tokenizer.token_bytes(4) == b"w0"
    left = [weakref.ref(tokenizer), weakref.ref(tokenizer._tokenizer)]
    gc.disable()  # what is loaded is frozen: the collector does not see it
    try:
        del tokenizer
        assert [ref() for ref in left] == [None, None]
    finally:
        gc.enable()
