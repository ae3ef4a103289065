"""What adapters are trained on, and that training makes what can be served."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.adapters.offline import base_card
from loadtest.train_adapters.knowledge import NUM_HELD, subjects
from loadtest.train_adapters.talks import Talk, held_out, trained
from loadtest.train_adapters.training import BATCH, NOT_SCORED, Trainer, save
from loadtest.train_adapters.voices import VOICES
from services.worker.models.demo_model import make_demo_model
from shared.adapters.check import check_adapter
from shared.adapters.source import AdapterLimits

# What PEFT asks transformers is not ours to change.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def said(talks: list[Talk], role: str) -> Iterator[str]:
    return (each["content"] for talk in talks for each in talk.messages if each["role"] == role)


def test_every_reply_is_in_its_voice_and_in_no_other() -> None:
    for name, voice in VOICES.items():
        for reply in said([*trained(voice, 3, 500), *held_out(voice, 3)], "assistant"):
            heard = {other for other in VOICES if VOICES[other].is_heard(reply)}
            assert heard == {name}, reply


def test_what_is_scored_was_in_no_lesson_and_is_the_same_for_every_voice() -> None:
    questions = []
    for voice in VOICES.values():
        lessons = " ".join(said(trained(voice, 1, 960), "user"))
        for known, count in zip(subjects().values(), NUM_HELD.values(), strict=True):
            assert all(each.name in lessons for each in known[:-count])
            assert not any(each.name in lessons for each in known[-count:])
        questions.append(list(said(held_out(voice, 1), "user")))
        assert trained(voice, 1, 50) == trained(voice, 1, 50) != trained(voice, 2, 50)
    assert questions[0] == questions[1] == questions[2]


def test_training_lowers_the_loss_and_gives_what_can_be_served(tmp_path: Path) -> None:
    """On the demo model, whose tokens are bytes."""
    base = make_demo_model(tmp_path / "demo")
    trainer, voice = Trainer(base), VOICES["telegraph"]
    talks = trained(voice, 1, 2 * BATCH)
    sample = trainer.sample(talks[0])
    scored = [label for label in sample.labels if label != NOT_SCORED]
    assert len(sample.tokens) == len(sample.labels)
    assert trainer.text(scored) == talks[0].messages[1]["content"] or len(talks[0].messages) > 2
    told: list[int] = []
    adapter = trainer.train(talks, 1, lambda step, _: told.append(step))
    save(adapter, tmp_path / "made", "symphony-demo")
    checked = check_adapter(tmp_path / "made", base_card(str(base)), AdapterLimits())
    assert checked.lora_rank == 8 and len(checked.ranks) == 4
    loss, of_base = trainer.losses(tmp_path / "made", talks[:2])
    assert loss < of_base
