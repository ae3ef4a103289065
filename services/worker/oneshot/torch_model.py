"""Encoders and classifiers of transformers: loading them, and running batches of one length."""

import inspect
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
)

from services.worker.models.digest import OnBytes, weights_digest
from services.worker.models.weights import load_weights
from services.worker.oneshot.files import IMAGE_FILES, TOKENIZER_FILES, digest_files, read_json
from services.worker.oneshot.inputs import ImageInputs, TextInputs, load_image_inputs
from services.worker.oneshot.loaded import Head, LoadedOneshot, probe
from services.worker.oneshot.memory import LiveBytes, weights_bytes
from services.worker.oneshot.model import BatchStoppedError, DeviceLostError, Values
from services.worker.oneshot.pooling import Pooling, load_pooling, pooling_files
from shared.errors import ConfigError
from shared.ids import ModelId
from shared.wire.messages import OneshotCard, OneshotVariant, Task

TOKENS_MAX = 512  # of a model that does not say what it can take


class TorchOneshot:
    """Runs a loaded model; see `OneshotModel`.

    Args:
        variants: input lengths, or ``[0]`` for images.
    """

    def __init__(
        self,
        model_id: str,
        loaded: LoadedOneshot,
        variants: Sequence[int],
        slo_ms: float = 0.0,
        created: int = 0,
    ) -> None:
        self._model = loaded
        self._stop = threading.Event()
        self.card = OneshotCard(
            model_id=ModelId(model_id),
            task=loaded.task,
            modality=loaded.modality,
            source=loaded.source,
            fingerprint=loaded.fingerprint,
            slo_ms=slo_ms,
            variants=[OneshotVariant(variant=variant, batch_ns=[]) for variant in variants],
            num_values=loaded.num_values,
            labels=loaded.labels,
            created=created,
        )
        self.decode = loaded.inputs.decode
        for module in loaded.module.modules():
            if isinstance(module, torch.nn.ModuleList):
                for layer in module:
                    layer.register_forward_pre_hook(self._look_for_stop)

    def set_profile(
        self, variants: list[OneshotVariant], slo_ms: float, dynamic_bytes: int = 0
    ) -> None:
        """Say how long batches take, what target that allows, and what memory they need."""
        self.card = replace(
            self.card,
            variants=variants,
            slo_ms=slo_ms,
            static_bytes=weights_bytes(self._model.module),
            dynamic_bytes=dynamic_bytes,
        )

    def peak_bytes(self, variant: int, size: int) -> int:
        """Memory that a batch of random inputs takes beside the weights."""
        live = LiveBytes(self._model.module)
        with live:
            self.run_sample(variant, size)
        return live.peak

    def run(self, inputs: Sequence[Any], variant: int, stop: threading.Event) -> Values:
        """See `OneshotModel.run`."""
        self._stop = stop
        try:
            result: Values = self._model.compute(inputs, variant).cpu().numpy()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise
        except torch.AcceleratorError as error:
            raise DeviceLostError(f"{self._model.module.device}: {error}") from error
        return result

    def run_sample(self, variant: int, size: int) -> None:
        """Run a batch of random inputs, to measure it."""
        self.run(self._model.inputs.sample(size, variant), variant, threading.Event())

    def close(self) -> None:
        """See `OneshotModel.close`."""
        is_gpu = self._model.module.device.type == "cuda"
        del self._model, self.decode
        if is_gpu:
            torch.cuda.empty_cache()

    def _look_for_stop(self, module: object, arguments: object) -> None:
        if self._stop.is_set():
            raise BatchStoppedError


def load_oneshot(
    source: str, task: Task, device: str, dtype: str, on_bytes: OnBytes = lambda _: None
) -> LoadedOneshot:
    """Load a model for one task from a folder or a hub id.

    Args:
        dtype: ``auto`` (the checkpoint's), ``float32``, ``bfloat16`` or ``float16``.
        on_bytes: see `WeightsDigest`.

    Raises:
        ConfigError: no such model, it is not readable, a weight is missing or left over, or it
            cannot do this task, or not in batches.
    """
    try:
        config = AutoConfig.from_pretrained(source)
        is_image = not hasattr(config.get_text_config(), "vocab_size")
        module = load_weights(
            auto_class(task, is_image, config, source),
            source,
            is_encoder=task == "embed",
            device="" if device == "cpu" else device,
            dtype="auto" if dtype == "auto" else getattr(torch, dtype),
        )
    except (OSError, ValueError, KeyError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ConfigError(f"cannot load model {source!r}: {first_line}") from error
    module.requires_grad_(False).train(False)
    module.to(torch.device(device))
    pooling = load_pooling(source) if task == "embed" else None
    inputs: TextInputs | ImageInputs
    if is_image:
        inputs = load_image_inputs(source, module.dtype)
    else:
        inputs = _text_inputs(source, module, pooling)
    digest = weights_digest(source, on_bytes)
    # What else decides what an input becomes, here or in the frontend.
    digest_files(digest, source, IMAGE_FILES if is_image else TOKENIZER_FILES)
    if pooling is not None:
        digest_files(digest, source, pooling_files(source))
    digest.update(f"{task}:{module.dtype}:{pooling}:{inputs}".encode())
    loaded = LoadedOneshot(
        module=module,
        source=source,
        task=task,
        modality="image" if is_image else "text",
        inputs=inputs,
        head=_head(source, task, config, pooling),
        num_values=0,
        labels=_labels(config) if task == "classify" else [],
        fingerprint=digest.hexdigest(),
    )
    return replace(loaded, num_values=probe(loaded))


def auto_class(task: Task, is_image: bool, config: Any, source: str) -> Any:
    """The class of transformers that loads a model for a task.

    Raises:
        ConfigError: there is none.
    """
    if task == "classify":
        return AutoModelForImageClassification if is_image else AutoModelForSequenceClassification
    if is_image:
        raise ConfigError(f"cannot serve {source!r}: image models are served for classify only")
    if task != "embed":
        return AutoModelForSequenceClassification
    # Of a model with two halves, the encoder alone.
    is_half = (config.architectures or [""])[0].endswith("EncoderModel")
    return AutoModelForTextEncoding if is_half or config.is_encoder_decoder else AutoModel


def _head(source: str, task: Task, config: Any, pooling: Pooling | None) -> Head:
    if pooling is not None:
        return lambda outputs, given: pooling(outputs.last_hidden_state, given["attention_mask"])
    if task == "rerank" and config.num_labels != 1:
        raise ConfigError(f"{source}: a reranker has 1 label, this model {config.num_labels}")
    if config.problem_type == "regression" and task == "classify":
        return lambda outputs, _: outputs.logits.float()
    if config.num_labels == 1 or config.problem_type == "multi_label_classification":
        return lambda outputs, _: outputs.logits.float().sigmoid()
    return lambda outputs, _: outputs.logits.float().softmax(-1)


def _labels(config: Any) -> list[str]:
    return [str(config.id2label.get(index, index)) for index in range(config.num_labels)]


def _text_inputs(source: str, module: Any, pooling: Pooling | None) -> TextInputs:
    config = module.config.get_text_config()
    pad_token = config.pad_token_id
    if pad_token is None and pooling is None:
        # Classifiers on a decoder find a text's last token by the padding behind it.
        raise ConfigError(f"{source}: its config names no pad_token_id")
    # Some models take segments but have no embeddings for them: GPT-2 would add a token's instead.
    num_segments = int(getattr(config, "type_vocab_size", 0) or 0)
    takes_segments = "token_type_ids" in inspect.signature(module.forward).parameters
    return TextInputs(
        vocab_size=_vocab_size(source, module),
        num_segments=num_segments if takes_segments else 0,
        pad_token=int(pad_token or 0),
        tokens_max=_tokens_max(source, module, pooling),
    )


def _vocab_size(source: str, module: Any) -> int:
    try:
        return int(module.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError):
        kind = module.config.model_type
        raise ConfigError(
            f"cannot serve {source!r}: the token embeddings of type {kind!r} are not supported"
        ) from None


def _tokens_max(source: str, module: Any, pooling: Pooling | None) -> int:
    """The longest input, special tokens included, that model and tokenizer are meant for."""
    config = module.config.get_text_config()
    num_positions = int(getattr(config, "max_position_embeddings", None) or 0)
    limits = [num_positions if num_positions > 0 else TOKENS_MAX]  # XLNet says -1: no limit
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, torch.nn.Embedding):
            # Where a padding position is set aside (RoBERTa), real ones begin behind it.
            num_unused = 0 if part.padding_idx is None else part.padding_idx + 1
            limits.append(part.num_embeddings - num_unused)
    tokenizer = read_json(source, "tokenizer_config.json") or {}
    if (stated := tokenizer.get("model_max_length")) is not None:
        limits.append(int(stated))
    if pooling is not None and pooling.max_tokens is not None:
        limits.append(pooling.max_tokens)
    return min(limit for limit in limits if limit > 0)
