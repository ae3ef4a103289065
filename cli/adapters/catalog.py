"""Adapters that `up --adapter` knows by name: for the demo model, which makes them when they are
asked for, and for SmolLM2, three voices that were trained for it (`trained/README.md`).
"""

from dataclasses import dataclass
from pathlib import Path

from cli.models.catalog import DEFAULT, DEMO
from services.worker.models.demo_model import DEMO_MODEL_ID

TRAINED = Path(__file__).parent / "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAdapter:
    """Attributes:
    model: what it is made for, as `--model` takes it.
    base: what that is served as.
    what: for people.
    """

    name: str
    model: str
    base: str
    what: str

    @property
    def is_made(self) -> bool:
        """Whether it is made when it is asked for; else it is in `TRAINED`."""
        return self.model == DEMO


def _demo(name: str, what: str) -> KnownAdapter:
    return KnownAdapter(name=name, model=DEMO, base=DEMO_MODEL_ID, what=what)


def _trained(name: str, what: str) -> KnownAdapter:
    return KnownAdapter(name=name, model=DEFAULT, base=DEFAULT, what=what)


KNOWN = {
    each.name: each
    for each in (
        _trained("pirate", "talks like a pirate"),
        _trained("telegraph", "sends telegrams"),
        _trained("json", "answers with a JSON object"),
        _demo("digits", "says digits only"),
        _demo("capitals", "says capitals only"),
        _demo("vowels", "says vowels only"),
    )
}
