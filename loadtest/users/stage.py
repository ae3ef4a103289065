"""What all users of one process share: what is asked, of whom, and what was seen."""

import math
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from cli.base.called import hint
from loadtest.functions_trace import TRACE
from loadtest.popularity import shares_of
from loadtest.users.client import Client
from loadtest.users.life import Dialogue, Habits, Said
from loadtest.users.measures import Turn
from loadtest.users.options import OPEN, PROFILES, Options
from loadtest.users.replay import replay, why_absent
from loadtest.users.speaking import Speaker
from loadtest.users.texts import (
    CALIBRATION_CHARS,
    DIALOGUES,
    calibrate,
    chats,
    dialogues,
    drawn,
    heavy,
)
from loadtest.workloads.script import Script
from shared.errors import InvalidRequest

PARTS_MAX = 4096  # processes of a run: users of none have the number of another's
CONTEXT_SHARE = 0.75  # of what the model takes: a longer conversation is not gone on with
MESSAGE_SHARE = 0.2  # of it, at most, in one message or answer


class Stage:
    """Args:
    fire: called with each turn.

    Raises:
        ApiError: no server answers at the address.
        InvalidRequest: an option cannot be.
    """

    def __init__(self, options: Options, fire: Callable[[Turn], None]) -> None:
        if options.profile not in (*PROFILES, OPEN):
            raise InvalidRequest(f"--profile: one of {', '.join(PROFILES)}")
        self.options = options
        self.turns: list[Turn] = []
        self.began_at = time.monotonic()
        self.is_over = False
        self._fire = fire
        self._numbers = iter(range(0))
        self._lock = threading.Lock()
        api = self._client()
        models = api.models()
        self._card = _chosen(models, options.model)
        self.model = str(self._card["id"])
        self.adapters = sorted(str(m["id"]) for m in models if m.get("parent") == self.model)
        self.context_max = int(self._card.get("max_model_len") or 8192)
        self.texts = calibrate(
            lambda text: api.num_tokens(self.model, text), min(CALIBRATION_CHARS, self._chars_max())
        )
        self.habits = Habits(context_tokens_max=math.floor(self.context_max * CONTEXT_SHARE))
        self._shares = self._adapter_shares()
        self._dialogues = self._load_dialogues()
        self.scripts = deque(self._load_scripts())

    def begin(self, part: int, num_parts: int) -> None:
        """The clock runs.

        Args:
            part, num_parts: which of how many processes this is.
        """
        self.began_at = time.monotonic()
        self._numbers = iter(range(part, 1 << 40, PARTS_MAX))
        self.scripts = deque(list(self.scripts)[part::num_parts])

    def speaker(self, *, hints: bool, is_announced: bool = False) -> Speaker:
        """A client of its own."""
        return Speaker(
            self._client(), self.on_turn, self.began_at, hints=hints, is_announced=is_announced
        )

    def next_number(self) -> int:
        """Of a user; of no other in any process."""
        with self._lock:
            return next(self._numbers)

    def rng(self, name: str) -> Random:
        """The same for the same seed and name."""
        return Random(f"{self.options.seed}/{name}")

    def hints(self, name: str) -> bool:
        """Whether the user of this name hints."""
        return self.rng(f"hints/{name}").random() < self.options.hints

    def on_turn(self, turn: Turn) -> None:
        """Keep it; what ends after the run does not count."""
        if not self.is_over:
            self.turns.append(turn)
            self._fire(turn)

    def dialogues(self, rng: Random) -> Iterator[Dialogue]:
        """What a user will talk about."""
        found = drawn(self._dialogues, rng)
        if self.options.profile == "prefill":
            found = heavy(found, self.texts, self.options.prompt_tokens, 16, rng)
        return map(self._cut, found)

    def model_of(self, rng: Random) -> str:
        """Whom a conversation is with: the base, or an adapter by its popularity."""
        if not self._shares:
            return self.model
        return rng.choices(self.adapters, self._shares)[0]

    def model_for(self, tenant: str) -> str:
        """Whom a trace's tenant talks to: each has an adapter, if there are any."""
        if tenant == "default" or not self.adapters:
            return self.model
        return self.adapters[zlib.crc32(tenant.encode()) % len(self.adapters)]

    def fits(self, num_context: int, num_new: int, num_answer: int) -> bool:
        """Whether so long a turn fits the model; texts are a little longer than asked for."""
        return num_context + num_new * 1.2 + num_answer + 64 < self.context_max

    def answer_max(self, num_answer: int) -> int:
        """So long, or as long as may be."""
        return max(min(num_answer, math.floor(self.context_max * MESSAGE_SHARE)), 1)

    def _client(self) -> Client:
        return Client(self.options.url, self.options.api_key, self.options.cert)

    def _chars_max(self) -> int:
        """Of a text that surely fits: no token is shorter than a character."""
        return math.floor(self.context_max * MESSAGE_SHARE)

    def _cut(self, dialogue: Dialogue) -> Dialogue:
        chars_max = math.floor(self._chars_max() * self.texts.chars_per_token)
        return tuple(
            Said(said.text[:chars_max], said.num_words, self.answer_max(said.num_answer))
            for said in dialogue
        )

    def _adapter_shares(self) -> list[float]:
        if self.options.profile != "adapters":
            return []
        if not self.adapters:
            raise InvalidRequest(
                f"--profile adapters: {self.model} has none; add some with `{hint('adapters add')}`"
            )
        num, text = len(self.adapters), self.options.popularity
        shares = shares_of("zipf:1" if text == "zipf" else text, num, TRACE, self.options.seed)
        return [float(share) for share in shares]

    def _load_dialogues(self) -> list[Dialogue]:
        if self.options.profile != "replay" or self.options.trace not in DIALOGUES:
            return chats()
        if why := why_absent(self.options.trace):
            raise InvalidRequest(f"--trace {self.options.trace}: {why}")
        return dialogues(self.options.trace)

    def _load_scripts(self) -> list[Script]:
        options = self.options
        duration_ns = round(options.duration_s * options.faster * 1e9)
        if options.profile != "replay" or options.trace in DIALOGUES:
            return []
        found = replay(options.trace, options.users, duration_ns, options.seed)
        return sorted(found, key=lambda script: script.begins_ns)


def _chosen(models: list[dict[str, Any]], wanted: str) -> dict[str, Any]:
    for model in models:
        if model["id"] == wanted or (not wanted and not model.get("parent")):
            return model
    raise InvalidRequest(f"--model {wanted}: there is no such model that generates")
