"""What the demonstration plays: the deployment's sizes, who says what, and in which order the two
sides have their turns.

Both sides are played by the same deployment, round by round in turn. What they say is the same word
for word. They share no KV: each conversation has a salt of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from loadtest.cluster.measured import LINK_SHARE
from loadtest.cluster.plant import GROUPED_LAYERS
from loadtest.users.life import Habits
from shared.profiles import LatencyProfile, load_profile

Side = Literal["without", "with"]
Part = Literal["chat", "team"]
SIDES: tuple[Side, Side] = ("without", "with")
PARTS: tuple[Part, Part] = ("chat", "team")

LINK_GBIT = 100
PCIE_BYTES_PER_S = 25e9  # what copies reach on PCIe 4.0 x16
DISK_READ_BYTES_PER_S, DISK_WRITE_BYTES_PER_S = 6.8e9, 4.0e9  # an NVMe disk's data sheet
TYPING_WPM = Habits().typing_wpm
PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
QUESTIONS = (
    "What does it say first?", "Who wrote all of this?", "Make that shorter, please.",
    "And what happened after that?", "Is there more about winter?", "Which part matters the most?",
    "Say it in plain words.", "Where does the road lead?", "What would you leave out?",
    "Can we trust the captain?",
)  # fmt: skip
ROLES = ("manager", "architect", "engineer", "qa")
TOOLS = {"engineer": "pytest", "qa": "review"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model on a GPU, both emulated, and what is around it. Rates are those of
    `loadtest.cluster.plant`, which says where they come from.

    Pages are `scale` times as small as the model's and rates are divided by as much, so that moving
    a token takes the same seconds.

    Attributes:
        profile: of `shared.profiles`.
        num_layers: groups of layers, in which history moves.
        pool_tokens: of history that have room beside the GPU, on each host.
        arena_tokens: that have room in each host's memory.
        bus_bytes_per_s: from there to the GPU.
        disk_read_bytes_per_s, disk_write_bytes_per_s: of each host's disk.
        peer_bytes_per_s: from one host to the other.
    """

    name: str = "scale-model"
    profile: str = "a100-llama3-8b"
    scale: int = 128
    num_layers: int = GROUPED_LAYERS
    pool_tokens: int = 72_000
    arena_tokens: int = 72_000
    bus_bytes_per_s: float = PCIE_BYTES_PER_S
    disk_read_bytes_per_s: float = DISK_READ_BYTES_PER_S
    disk_write_bytes_per_s: float = DISK_WRITE_BYTES_PER_S
    peer_bytes_per_s: float = LINK_GBIT / 8 * 1e9 * LINK_SHARE

    @property
    def scaled(self) -> LatencyProfile:
        """What workers emulate."""
        true = load_profile(self.profile)
        return replace(
            true,
            name=self.name,
            num_layers=self.num_layers,
            kv_bytes_per_token=true.kv_bytes_per_token // self.scale,
        )

    def move_s(self, num_tokens: int, bytes_per_s: float) -> float:
        """How long so much history takes at this rate, if nothing else moves.

        >>> round(Model().move_s(16_000, Model().disk_read_bytes_per_s), 2)
        0.31
        """
        return num_tokens * load_profile(self.profile).kv_bytes_per_token / bytes_per_s

    def compute_s(self, num_tokens: int) -> float:
        """How long computing it again takes.

        >>> round(Model().compute_s(16_000), 2)
        1.5
        """
        return num_tokens * load_profile(self.profile).prefill_ms_per_token / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is played.

    Attributes:
        num_people: at the chat.
        num_questions: that each asks about the document, on each side.
        document_tokens: that each begins with.
        reply_tokens, team_reply_tokens: of each answer.
        stagger_s: from one person's first keystroke to the next one's.
        faster: divides the time that typing takes.
        num_teams: at work at once.
        num_rounds: in which each agent has another turn.
        system_tokens, brief_tokens: each agent's role, and what it works on.
        tool_s: that tests take.
        num_pairs: of runs of the teams, one on each side.
    """

    num_people: int = len(PEOPLE)
    num_questions: int = 2
    document_tokens: int = 16_000
    reply_tokens: int = 40
    stagger_s: float = 1.2
    faster: float = 1.0
    num_teams: int = 4
    num_rounds: int = 1
    system_tokens: int = 4_000
    brief_tokens: int = 10_000
    team_reply_tokens: int = 60
    tool_s: float = 1.5
    num_pairs: int = 1


WHOLE = Sizes()
QUICK = Sizes(
    num_people=2, num_questions=1, document_tokens=600, reply_tokens=4, stagger_s=0.1, faster=8.0,
    num_teams=1, system_tokens=200, brief_tokens=300, team_reply_tokens=4, tool_s=0.2, num_pairs=1,
)  # fmt: skip


def sides_in_turns(num_rounds: int, rng: Random) -> list[tuple[int, Side]]:
    """Rounds of both sides, always in the same order, which chance decides: each conversation goes
    on when one round of the other side, and no more, has come between.
    """
    sides = rng.sample(SIDES, 2)
    return [(number, side) for number in range(num_rounds) for side in sides]


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    Attributes:
        who: of `PEOPLE`.
        number: in the conversation; 0: the document that it begins with.
        comes_s: into the round, that the first letter is typed.
        typing_s: until it is sent.
    """

    who: str
    number: int
    text: str
    comes_s: float
    typing_s: float


def typing_s(text: str, faster: float = 1.0) -> float:
    """How long a person types at this.

    >>> round(typing_s("Make that shorter, please."), 1)
    4.6
    """
    return len(text.split()) / TYPING_WPM * 60 / faster


def questions(sizes: Sizes, number: int, rng: Random) -> list[Message]:
    """A round of the chat: everybody asks once, in an order of their own.

    Args:
        number: of the round, from 1 on.
    """
    people = rng.sample(PEOPLE[: sizes.num_people], sizes.num_people)
    texts = (rng.choice(QUESTIONS) for _ in people)
    return [
        Message(who, number, text, place * sizes.stagger_s, typing_s(text, sizes.faster))
        for place, (who, text) in enumerate(zip(people, texts, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class Step:
    """An agent's time at work: a turn, and if it has a tool, another when that has run.

    Attributes:
        is_first: it has done nothing before, and is given its brief.
        following: who goes on; None: none does.
        tool: that it runs; empty: none.
    """

    role: str
    is_first: bool
    following: str | None
    tool: str


def steps(num_rounds: int) -> Iterator[Step]:
    """A team's work, from what is wanted to what passes: each hands to the next one, and the last
    to the first again.
    """
    order = [(number, role) for number in range(num_rounds + 1) for role in ROLES]
    for place, (number, role) in enumerate(order):
        following = order[place + 1][1] if place + 1 < len(order) else None
        yield Step(role, number == 0, following, TOOLS.get(role, ""))
