"""One-shot models compute what transformers computes for each input alone, in any batch."""

import base64
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    LlamaConfig,
    LlamaForSequenceClassification,
)
from transformers import AutoModelForImageClassification as AutoModelForImages

from services.worker.oneshot.model import BatchStoppedError, pack_values
from services.worker.oneshot.torch_model import TorchOneshot, load_oneshot
from shared.errors import ConfigError, InvalidRequest
from shared.ids import JobId
from shared.wire.messages import JobInput, Task, pack_ints
from tests.unit.worker.oneshot.models import (
    ENCODERS,
    HIDDEN,
    POSITIONS,
    SIZES,
    VOCAB,
    make_classifier,
    make_embedder,
    make_encoder,
    make_generator,
    make_image_classifier,
    make_reranker,
    make_roberta,
    save,
    write_json,
)

Floats = npt.NDArray[np.float32]
RNG = np.random.default_rng(11)
TEXTS = [RNG.integers(2, VOCAB, length).tolist() for length in (1, 5, 17, 24, 9, 2, 13)]


def load(folder: Path, task: Task, variants: tuple[int, ...] = (24, 32)) -> TorchOneshot:
    return TorchOneshot("m", load_oneshot(str(folder), task, "cpu", "auto"), list(variants))


def text(tokens: list[int], segments: list[int] | None = None) -> JobInput:
    packed = pack_ints(segments) if segments else ""
    return JobInput(job_id=JobId("j"), tokens=pack_ints(tokens), segments=packed)


def image(pixels: npt.NDArray[np.uint8]) -> JobInput:
    return JobInput(
        job_id=JobId("j"),
        pixels=base64.b64encode(pixels.tobytes()).decode(),
        height=pixels.shape[0],
        width=pixels.shape[1],
    )


def run(model: TorchOneshot, jobs: list[JobInput], variant: int = 24) -> Floats:
    inputs = [model.decode(job, variant) for job in jobs]
    return model.run(inputs, variant, threading.Event())


def hidden_states(folder: Path, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        model = AutoModel.from_pretrained(folder)
        states: torch.Tensor = model(torch.tensor([tokens])).last_hidden_state[0]
    return states


def logits(folder: Path, tokens: list[int], segments: list[int] | None = None) -> torch.Tensor:
    with torch.no_grad():
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        given = {} if segments is None else {"token_type_ids": torch.tensor([segments])}
        answer: torch.Tensor = model(torch.tensor([tokens]), **given).logits[0]
    return answer


POOLED: dict[str, Any] = {
    "cls_token": lambda h: h[0],
    "max_tokens": lambda h: h.max(0).values,
    "mean_tokens": lambda h: h.mean(0),
    "mean_sqrt_len_tokens": lambda h: h.sum(0) / len(h) ** 0.5,
    "lasttoken": lambda h: h[-1],
}


class TestEmbed:
    @pytest.mark.parametrize("mode", POOLED)
    def test_pools_as_the_files_say(self, tmp_path: Path, mode: str) -> None:
        folder = make_embedder(tmp_path / "m", [mode], normalize=False)
        got = run(load(folder, "embed"), [text(tokens) for tokens in TEXTS])
        for row, tokens in zip(got, TEXTS, strict=True):
            want = POOLED[mode](hidden_states(folder, tokens)).numpy()
            np.testing.assert_allclose(row, want, atol=2e-5)

    def test_concatenates_and_normalises(self, tmp_path: Path) -> None:
        folder = make_embedder(tmp_path / "m", ["mean_tokens", "cls_token"])
        model = load(folder, "embed")
        states = hidden_states(folder, TEXTS[2])
        want = torch.nn.functional.normalize(torch.cat([states[0], states.mean(0)]), dim=0)
        np.testing.assert_allclose(run(model, [text(TEXTS[2])])[0], want.numpy(), atol=2e-6)
        assert model.card.num_values == 2 * HIDDEN

    def test_without_such_files_it_is_the_mean_of_length_one(self, tmp_path: Path) -> None:
        folder = make_embedder(tmp_path / "m")
        want = torch.nn.functional.normalize(hidden_states(folder, TEXTS[1]).mean(0), dim=0)
        got = run(load(folder, "embed"), [text(TEXTS[1]), text(TEXTS[3])])
        np.testing.assert_allclose(got[0], want.numpy(), atol=2e-6)

    def test_a_batch_and_its_padding_change_nothing(self, tmp_path: Path) -> None:
        model = load(make_embedder(tmp_path / "m"), "embed")
        alone = np.concatenate([run(model, [text(tokens)]) for tokens in TEXTS])
        np.testing.assert_allclose(run(model, [text(t) for t in TEXTS]), alone, atol=2e-6)
        longer = run(model, [text(t) for t in TEXTS[::-1]], variant=32)[::-1]
        np.testing.assert_allclose(longer, alone, atol=2e-6)

    def test_positions_behind_the_padding_one_count(self, tmp_path: Path) -> None:
        folder = make_roberta(tmp_path / "m")
        loaded = load_oneshot(str(folder), "embed", "cpu", "auto")
        assert loaded.inputs.tokens_max == POSITIONS - 2  # type: ignore[union-attr]
        model = TorchOneshot("m", loaded, [38])
        tokens = RNG.integers(2, VOCAB, 38).tolist()
        want = torch.nn.functional.normalize(hidden_states(folder, tokens).mean(0), dim=0)
        got = run(model, [text(TEXTS[0]), text(tokens)], variant=38)
        np.testing.assert_allclose(got[1], want.numpy(), atol=2e-6)

    @pytest.mark.parametrize("kind", ENCODERS)
    def test_encoders_of_many_kinds(self, tmp_path: Path, kind: str) -> None:
        folder = make_encoder(tmp_path / "m", kind)
        model = load(folder, "embed")
        alone = np.concatenate([run(model, [text(tokens)]) for tokens in TEXTS])
        np.testing.assert_allclose(run(model, [text(t) for t in TEXTS], 32), alone, atol=5e-6)
        theirs = AutoModelForTextEncoding if kind == "t5" else AutoModel
        with torch.no_grad():
            states = theirs.from_pretrained(folder)(torch.tensor([TEXTS[2]])).last_hidden_state[0]
        want = torch.nn.functional.normalize(states.mean(0), dim=0)
        np.testing.assert_allclose(alone[2], want.numpy(), atol=5e-6)

    def test_an_unknown_step_is_refused(self, tmp_path: Path) -> None:
        folder = make_embedder(tmp_path / "m", ["mean_tokens"])
        steps = [{"path": "", "type": "x.Transformer"}, {"path": "2", "type": "x.Surprise"}]
        write_json(folder / "modules.json", steps)
        with pytest.raises(ConfigError, match="'Surprise'"):
            load(folder, "embed")


class TestClassify:
    def test_scores_of_pairs(self, tmp_path: Path) -> None:
        folder = make_reranker(tmp_path / "m")
        model = load(folder, "rerank")
        segments = [[0] * (len(t) // 2) + [1] * (len(t) - len(t) // 2) for t in TEXTS]
        got = run(model, [text(*pair) for pair in zip(TEXTS, segments, strict=True)])
        want = [logits(folder, *pair).sigmoid() for pair in zip(TEXTS, segments, strict=True)]
        np.testing.assert_allclose(got, torch.stack(want).numpy(), atol=2e-6)
        assert (model.card.num_values, model.card.labels) == (1, [])

    @pytest.mark.parametrize(
        ("problem_type", "activation"),
        [
            (None, lambda x: x.softmax(-1)),
            ("single_label_classification", lambda x: x.softmax(-1)),
            ("multi_label_classification", torch.sigmoid),
            ("regression", lambda x: x),
        ],
    )
    def test_probabilities(self, tmp_path: Path, problem_type: str | None, activation: Any) -> None:
        folder = make_classifier(tmp_path / "m", problem_type)
        model = load(folder, "classify")
        got = run(model, [text(tokens) for tokens in TEXTS])
        want = torch.stack([activation(logits(folder, tokens)) for tokens in TEXTS])
        np.testing.assert_allclose(got, want.numpy(), atol=5e-6)
        assert model.card.labels == ["bad", "so-so", "good"]

    def test_images(self, tmp_path: Path) -> None:
        folder = make_image_classifier(tmp_path / "m")
        model = load(folder, "classify", (0,))
        pixels = RNG.integers(0, 256, (5, 16, 24, 3), np.uint8)
        processor = AutoImageProcessor.from_pretrained(folder)
        theirs = AutoModelForImages.from_pretrained(folder)
        got = run(model, [image(one) for one in pixels], variant=0)
        for row, one in zip(got, pixels, strict=True):
            with torch.no_grad():
                want = theirs(**processor(images=one, return_tensors="pt")).logits[0].softmax(-1)
            np.testing.assert_allclose(row, want.numpy(), atol=5e-6)
        assert (model.card.modality, model.card.num_values) == ("image", 4)
        assert model.card.labels == ["cat", "dog", "bird", "fish"]

    def test_a_decoder_with_a_head(self, tmp_path: Path) -> None:
        torch.manual_seed(8)
        config = LlamaConfig(**{**SIZES, "num_labels": 3, "pad_token_id": 0})
        folder = save(LlamaForSequenceClassification(config), tmp_path / "m")
        got = run(load(folder, "classify"), [text(tokens) for tokens in TEXTS])
        want = torch.stack([logits(folder, tokens).softmax(-1) for tokens in TEXTS])
        np.testing.assert_allclose(got, want.numpy(), atol=5e-6)

    def test_a_reranker_has_one_label(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="1 label"):
            load(make_classifier(tmp_path / "m"), "rerank")


class TestBadInput:
    @pytest.mark.parametrize(
        ("job", "why"),
        [
            (text([]), "0 tokens"),
            (text([1] * 25), "25 tokens"),
            (text([1, VOCAB]), f"token {VOCAB}"),
            (text([-1, 1]), "token -1"),
            (text([1, 2], [0]), "1 segments"),
            (text([1, 2], [0, 2]), "segment 2"),
            (JobInput(job_id=JobId("j"), tokens="AAA"), "tokens"),
            (JobInput(job_id=JobId("j"), tokens="AAAA"), "whole number"),
        ],
    )
    def test_of_a_text(self, tmp_path: Path, job: JobInput, why: str) -> None:
        model = load(make_embedder(tmp_path / "m"), "embed")
        with pytest.raises(InvalidRequest, match=why):
            model.decode(job, 24)

    def test_of_an_image(self, tmp_path: Path) -> None:
        model = load(make_image_classifier(tmp_path / "m"), "classify", (0,))
        with pytest.raises(InvalidRequest, match="16 x 24"):
            model.decode(image(np.zeros((24, 16, 3), np.uint8)), 0)
        short = JobInput(job_id=JobId("j"), pixels="AAAA", height=16, width=24)
        with pytest.raises(InvalidRequest, match="3 bytes"):
            model.decode(short, 0)


def test_what_cannot_do_a_task_is_refused_at_once(tmp_path: Path) -> None:
    generator = make_generator(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"score\.weight is missing"):
        load(generator, "classify")
    AutoModelForSequenceClassification.from_pretrained(generator).save_pretrained(tmp_path / "c")
    with pytest.raises(ConfigError, match="pad_token_id"):
        load(tmp_path / "c", "classify")
    with pytest.raises(ConfigError, match="image models"):
        load(make_image_classifier(tmp_path / "i"), "embed")


def test_images_of_no_size_are_refused_at_once(tmp_path: Path) -> None:
    folder = make_image_classifier(tmp_path / "m")
    write_json(folder / "preprocessor_config.json", {"size": {"longest_edge": 16}})
    with pytest.raises(ConfigError, match="names no size"):
        load(folder, "classify", (0,))


def test_a_run_stops_between_two_layers(tmp_path: Path) -> None:
    model = load(make_embedder(tmp_path / "m"), "embed")
    stop = threading.Event()
    stop.set()
    with pytest.raises(BatchStoppedError):
        model.run([model.decode(text([1, 2]), 24)], 24, stop)
    assert run(model, [text([1, 2])]).shape == (1, HIDDEN)


def test_the_fingerprint_tells_task_and_pooling(tmp_path: Path) -> None:
    prints = {
        load(make_embedder(tmp_path / "a"), "embed").card.fingerprint,
        load(make_embedder(tmp_path / "b", ["cls_token"]), "embed").card.fingerprint,
        load(make_classifier(tmp_path / "c"), "classify").card.fingerprint,
        load(tmp_path / "c", "embed").card.fingerprint,
    }
    assert len(prints) == 4


def test_values_travel_as_float32() -> None:
    values = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32)
    unpacked = [np.frombuffer(base64.b64decode(row), "<f4") for row in pack_values(values)]
    np.testing.assert_array_equal(np.stack(unpacked), values)
