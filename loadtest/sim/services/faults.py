"""What goes wrong, and when: drawn from the seed before anything runs, so that it can be shrunk."""

from dataclasses import dataclass
from random import Random

KINDS = (
    "loss", "duplication", "delay", "freeze", "cut", "mute", "deaf", "nats", "worker", "scheduler",
    "tracker", "kvstore", "frontend", "clock", "queue", "arena", "slow disk", "full disk",
    "torn disk", "lost disk", "unread disk", "redis", "killer", "breaker", "link", "liar",
    "bucket",
)  # fmt: skip
# Drawn for themselves, each in this share of worlds with more than a few: what costs a world much
# of what it has, and what only shows where there is an object store.
OWN_SHARES = {
    "host": 0.12, "kvstores": 0.12, "slow bucket": 0.5, "term": 0.4, "garbled": 0.2,
    "leases": 0.3, "lost device": 0.15, "hung device": 0.15,
}  # fmt: skip
FEW_SHARE = 0.2  # of worlds: what is no fault's doing must not look like one's
# All the time messages are lost or late.
LOSING = {"loss", "garbled", "delay", "queue"}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong once.

    Attributes:
        draw: decides what exactly, the same way whatever else happens.
    """

    kind: str
    at_ns: int
    draw: int


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one world.

    Attributes:
        kinds: that are on.
        once: those that happen at an instant; others last.
    """

    kinds: frozenset[str]
    once: list[Fault]

    def without(self, fault: "Fault | str") -> "Faults":
        """The same without one fault, or one kind of them."""
        if isinstance(fault, Fault):
            return Faults(self.kinds, [other for other in self.once if other is not fault])
        once = [other for other in self.once if other.kind != fault]
        return Faults(self.kinds - {fault}, once)


HOW_OFTEN = {
    "freeze": 3, "cut": 2, "mute": 1, "deaf": 1, "nats": 1, "worker": 2, "scheduler": 1,
    "tracker": 1, "kvstore": 1, "frontend": 1, "clock": 2, "slow disk": 1, "full disk": 1,
    "torn disk": 1, "lost disk": 1, "redis": 1, "link": 3, "liar": 1,
    "bucket": 3, "host": 1, "kvstores": 1, "slow bucket": 2, "term": 3, "leases": 2,
    "lost device": 1, "hung device": 1,
}  # fmt: skip


def draw_faults(seed: int, faults_for_ns: int) -> Faults:
    """A random half of the kinds, each a few times; in some worlds few of them, or none."""
    random, rare = Random(f"faults {seed}"), Random(f"rare faults {seed}")
    is_few = random.random() < FEW_SHARE
    num_kinds = random.randrange(4) if is_few else len(KINDS) // 2
    kinds = frozenset(random.sample(KINDS, num_kinds))
    kinds |= {kind for kind, share in OWN_SHARES.items() if rare.random() < share and not is_few}
    once = [
        Fault(kind, random.randrange(faults_for_ns), random.getrandbits(32))
        for kind in (*KINDS, *OWN_SHARES)
        if kind in kinds
        for _ in range(random.randint(1, HOW_OFTEN[kind]) if kind in HOW_OFTEN else 0)
    ]
    return Faults(kinds, once)
