"""Trains a LoRA adapter on talks with PEFT, and saves it as small as it can be."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from loadtest.adapters import write_safetensors
from loadtest.train_adapters.talks import Message, Talk
from shared.adapters.config import CONFIG_FILE
from shared.adapters.tensors import PREFIX, WEIGHTS_FILE

RANK = 8
ALPHA = 16
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
BATCH = 8
LEARNING_RATE = 1e-3
WARM_STEPS = 10
REPORT_EVERY = 20
NOT_SCORED = -100


@dataclass(frozen=True, slots=True)
class Sample:
    """A talk as tokens.

    Attributes:
        labels: the voice's tokens where they stand, and `NOT_SCORED` at all others.
    """

    tokens: list[int]
    labels: list[int]


class Trainer:
    """A base and its tokenizer; adapters are trained on it one after the other."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._tokenizer: Any = AutoTokenizer.from_pretrained(source)
        self._turn_end = self._tokenizer.convert_tokens_to_ids("<|im_end|>")

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Of what is said so far, up to where the voice begins."""
        rendered = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=False
        )
        ids: list[int] = self._tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return ids

    def text(self, tokens: Sequence[int]) -> str:
        """Of a reply, up to its end."""
        tokens = list(tokens)
        end = tokens.index(self._turn_end) if self._turn_end in tokens else len(tokens)
        return str(self._tokenizer.decode(tokens[:end])).strip()

    def sample(self, talk: Talk) -> Sample:
        """Prompts and replies of a talk, each reply with its end."""
        tokens: list[int] = []
        labels: list[int] = []
        for at in range(1, len(talk.messages), 2):
            prompt = self.prompt(talk.messages[:at])
            assert prompt[: len(tokens)] == tokens, "a turn changes how those before it are cut"
            reply = talk.messages[at]["content"]
            said = self._tokenizer(reply, add_special_tokens=False)["input_ids"] + [self._turn_end]
            labels += [NOT_SCORED] * (len(prompt) - len(tokens)) + said
            tokens = prompt + said
        return Sample(tokens, labels)

    def train(self, talks: Sequence[Talk], seed: int, report: Callable[[int, float], None]) -> Any:
        """A PEFT model that was shown the talks once, `BATCH` of them a step.

        Args:
            report: called now and then with the step and the loss since.
        """
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(self._source, dtype=torch.bfloat16)
        config = LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS), task_type="CAUSAL_LM"
        )
        model = get_peft_model(base, config)
        learned = [each for each in model.parameters() if each.requires_grad]
        for each in learned:
            each.data = each.data.float()
        optimizer = torch.optim.AdamW(learned, LEARNING_RATE, weight_decay=0.0)
        batches = self._batches(talks, seed)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / WARM_STEPS, 1 - step / len(batches))
        )
        model.train()
        since = 0.0
        for step, batch in enumerate(batches, 1):
            loss = _loss(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learned, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            since += loss.item()
            if step % REPORT_EVERY == 0:
                report(step, since / REPORT_EVERY)
                since = 0.0
        return model

    @torch.inference_mode()
    def losses(self, folder: Path, talks: Sequence[Talk]) -> tuple[float, float]:
        """Nats a token of the replies: of an adapter as it was saved, and of the base."""
        base = AutoModelForCausalLM.from_pretrained(self._source, dtype=torch.bfloat16)
        model = PeftModel.from_pretrained(base, folder).eval()
        samples = [self.sample(talk) for talk in talks]
        with model.disable_adapter():
            of_base = _mean_loss(model, samples)
        return _mean_loss(model, samples), of_base

    def _batches(self, talks: Sequence[Talk], seed: int) -> list[list[Sample]]:
        """Samples of like lengths together, so that little is padded; batches in any order."""
        samples = sorted(map(self.sample, talks), key=lambda each: len(each.tokens))
        batches = [samples[at : at + BATCH] for at in range(0, len(samples), BATCH)]
        Random(seed).shuffle(batches)
        return batches


def save(model: Any, folder: Path, base_name: str) -> None:
    """PEFT's files, weights as bf16: half of what PEFT writes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.peft_config["default"]
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "inference_mode": True,
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(config.target_modules),
        "bias": "none",
    }
    (folder / CONFIG_FILE).write_text(json.dumps(fields, indent=2) + "\n")
    tensors = {
        PREFIX + name.removeprefix("base_model.model.").replace(".default.", "."): values
        for name, values in model.named_parameters()
        if ".lora_" in name
    }
    write_safetensors(
        folder / WEIGHTS_FILE,
        {name: tensors[name].detach().numpy() for name in sorted(tensors)},
        "BF16",
    )


def _mean_loss(model: Any, samples: Sequence[Sample]) -> float:
    total, count = 0.0, 0
    for each in samples:
        num = sum(label != NOT_SCORED for label in each.labels)
        total += _loss(model, [each]).item() * num
        count += num
    return total / count


def _loss(model: Any, batch: Sequence[Sample]) -> torch.Tensor:
    """Mean of the scored tokens; the head computes no others."""
    longest = max(len(each.tokens) for each in batch)

    def padded(rows: Sequence[list[int]], filler: int) -> torch.Tensor:
        return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])

    tokens = padded([each.tokens for each in batch], 0)
    labels = padded([each.labels for each in batch], NOT_SCORED)[:, 1:]
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    with torch.autocast("cpu", torch.bfloat16):
        hidden = base.model(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1]
        scored = labels != NOT_SCORED
        logits = base.lm_head(hidden[scored])
    return cross_entropy(logits.float(), labels[scored])
