"""Trains the adapters of SmolLM2-135M that `symphony up --adapter NAME` offers, each on text that
is made here, and scores them on talks about other things:
``python -m loadtest.train_adapters OUT``.

`loss` is in nats a token of held-out replies as the voice would have given them. `heard` is the
share of held-out questions that our own engine answers in the voice, greedily. Beside both are the
base's.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.base.runfile import DEFAULT_DATA_DIR
from cli.models.catalog import DEFAULT
from loadtest.train_adapters.talks import Talk, held_out, trained
from loadtest.train_adapters.voices import VOICES
from shared.adapters.tensors import WEIGHTS_FILE

REPLY_TOKENS = 96


STEPS = 120


def main() -> None:
    args = _arguments()
    # Before numba and torch count cores.
    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = str(args.threads)
    from cli.models.prepare import prepare_model

    source = Path(prepare_model(args.model, args.data_dir.expanduser() / "models", _tell))
    rows: dict[str, dict[str, Any]] = {}
    for name in args.voices:
        folder = args.out / name
        rows[name] = {}
        if not (folder / WEIGHTS_FILE).exists():
            rows[name] = _train(name, source, folder, args.steps, args.seed)
        rows[name] |= _know(name, source, folder, args.seed)
        _tell(f"{name}: {json.dumps(rows[name])}")
    said = _ask(source, args.out, args.voices, args.seed, rows)
    if args.json:
        print(json.dumps({"base": source.name, "adapters": rows}))
        return
    for name, row in rows.items():
        print(f"{name}, who {VOICES[name].what}:")
        for key, value in row.items():
            print(f"  {key:<18} {value}")
        for question, reply in said[name]:
            print(f"  > {question}\n  {reply}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.train_adapters", description=__doc__)
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="gets a folder each; what is in it is only scored"
    )
    parser.add_argument("--voices", nargs="*", choices=list(VOICES), default=list(VOICES))
    parser.add_argument("--model", default=DEFAULT, help="as `up --model` takes it")
    parser.add_argument("--data-dir", type=Path, default=DEFAULT_DATA_DIR)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="the scores, as one JSON object")
    return parser.parse_args()


def _train(name: str, source: Path, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Train one and write it down; how long that took."""
    from loadtest.train_adapters.training import BATCH, Trainer, save

    begun, cpu_begun = time.monotonic(), time.process_time()

    def show(step: int, loss: float) -> None:
        _tell(f"{name}: step {step} of {steps}, loss {loss:.3f}, {time.monotonic() - begun:.0f} s")

    talks = trained(VOICES[name], seed, steps * BATCH)
    save(Trainer(source).train(talks, seed, show), folder, source.name)
    return {
        "train_seconds": round(time.monotonic() - begun),
        "train_cpu_seconds": round(time.process_time() - cpu_begun),
    }


def _know(name: str, source: Path, folder: Path, seed: int) -> dict[str, Any]:
    """How well an adapter knows what it was not shown."""
    from loadtest.train_adapters.training import Trainer

    held = held_out(VOICES[name], seed)
    loss, of_base = Trainer(source).losses(folder, held)
    return {
        "file_bytes": (folder / WEIGHTS_FILE).stat().st_size,
        "num_held_out": len(held),
        "loss": round(loss, 3),
        "base_loss": round(of_base, 3),
    }


def _ask(
    source: Path, out: Path, names: Sequence[str], seed: int, rows: Mapping[str, dict[str, Any]]
) -> dict[str, list[tuple[str, str]]]:
    """Ask the served adapters what they were not shown; questions and replies of each."""
    from loadtest.train_adapters.served import replies
    from loadtest.train_adapters.training import Trainer

    trainer = Trainer(source)
    talks: list[Talk] = held_out(VOICES[names[0]], seed)  # the questions are the same for all
    prompts = [trainer.prompt(talk.messages[:1]) for talk in talks]
    questions = [talk.messages[0]["content"] for talk in talks]
    with tempfile.TemporaryDirectory() as scratch:
        folders = [None, *(out / name for name in names)]
        base, *others = replies(source, folders, prompts, REPLY_TOKENS, Path(scratch))
    plain = [trainer.text(tokens) for tokens in base]
    said = {}
    for name, given in zip(names, others, strict=True):
        texts = [trainer.text(tokens) for tokens in given]
        is_heard = VOICES[name].is_heard
        rows[name]["heard"] = round(sum(map(is_heard, texts)) / len(texts), 3)
        rows[name]["base_heard"] = round(sum(map(is_heard, plain)) / len(plain), 3)
        said[name] = list(zip(questions, texts, strict=True))
    return said


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
