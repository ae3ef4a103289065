"""What goes wrong, and when: drawn from the seed before anything runs, so that it can be shrunk."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from loadtest.world.timeline import MS, SECOND

if TYPE_CHECKING:
    from loadtest.world.world import World

KINDS = (
    "loss", "duplication", "delay", "freeze", "cut", "mute", "deaf", "nats", "worker", "scheduler",
    "tracker", "kvstore", "frontend", "clock", "queue", "arena", "slow disk", "full disk",
    "torn disk", "lost disk", "unread disk", "redis", "killer", "breaker",
)  # fmt: skip
FEW_SHARE = 0.2  # of worlds: what is no fault's doing must not look like one's
RESTART_MAX_NS = 4 * SECOND
AWAY_MAX_NS = 60 * SECOND
LONG_SHARE, LONG_NS = 0.2, 40 * SECOND  # of workers: their models are large


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong once.

    Attributes:
        draw: decides what exactly, the same way whatever else happens.
    """

    kind: str
    at_ns: int
    draw: int


@dataclass(slots=True)
class Faults:
    """The faults of one world.

    Attributes:
        kinds: that are on.
        queue_max: events that wait in a scheduler.
        unread_share: reads from disk that fail.
    """

    kinds: frozenset[str]
    once: list[Fault]
    queue_max: int = 65_536
    unread_share: float = 0.0

    def without(self, fault: "Fault | str") -> "Faults":
        """The same without one fault, or one kind of them."""
        if isinstance(fault, Fault):
            return Faults(self.kinds, [other for other in self.once if other is not fault])
        once = [other for other in self.once if other.kind != fault]
        return Faults(self.kinds - {fault}, once)


HOW_OFTEN = {
    "freeze": 3, "cut": 2, "mute": 1, "deaf": 1, "nats": 1, "worker": 2, "scheduler": 1,
    "tracker": 1, "kvstore": 1, "frontend": 1, "clock": 2, "slow disk": 1, "full disk": 1,
    "torn disk": 1, "lost disk": 1, "redis": 1,
}  # fmt: skip


def draw_faults(seed: int, faults_for_ns: int) -> Faults:
    """A random half of the kinds, each a few times; in some worlds few of them, or none."""
    random = Random(f"faults {seed}")
    num_kinds = random.randrange(4) if random.random() < FEW_SHARE else len(KINDS) // 2
    kinds = frozenset(random.sample(KINDS, num_kinds))
    once = [
        Fault(kind, random.randrange(faults_for_ns), random.getrandbits(32))
        for kind in KINDS
        if kind in kinds
        for _ in range(random.randint(1, HOW_OFTEN[kind]) if kind in HOW_OFTEN else 0)
    ]
    return Faults(kinds, once)


def unleash(world: "World") -> None:
    """Let the world's faults happen in their time."""
    faults, random = world.faults, world.fault_random
    weather = world.wires.weather
    if "loss" in faults.kinds:
        weather.loss = random.choice([0.002, 0.01, 0.03])
    if "duplication" in faults.kinds:
        weather.duplication = random.choice([0.01, 0.1])
    if "delay" in faults.kinds:
        weather.slow, weather.delay_max_ns = 0.03, random.choice([10, 100]) * MS
    if "queue" in faults.kinds:
        faults.queue_max = random.choice([4, 16])
    if "unread disk" in faults.kinds:
        faults.unread_share = 0.2
    for fault in faults.once:
        action = _ACTIONS[fault.kind]
        world.timeline.after(fault.at_ns, _happening(world, fault, action))


def heal(world: "World") -> None:
    """From now on nothing goes wrong any more; what is down or frozen comes back in its time."""
    world.faults.unread_share = 0.0
    world.faults.queue_max = 65_536
    weather = world.wires.weather
    weather.loss = weather.duplication = weather.slow = 0.0
    weather.delay_max_ns = 2 * MS
    world.redis.is_up = world.redis.takes_writes = True
    for kvstore in world.kvstores.values():
        kvstore.is_disk_full, kvstore.disk_slowness = False, 1


def _happening(
    world: "World", fault: Fault, action: Callable[["World", Random], None]
) -> Callable[[], None]:
    def happen() -> None:
        world.note(fault.kind)
        action(world, Random(fault.draw))

    return happen


def _duration_ns(random: Random) -> int:
    """0.1 to 20 s, more often short."""
    return int(100 * MS * 200 ** random.random())


def _crash_one_of(kind: str) -> Callable[["World", Random], None]:
    def happen(world: "World", random: Random) -> None:
        process = random.choice([p for p in world.processes if p.name.startswith(kind)])
        if process.is_up:
            process.crash()
            is_long = kind == "worker" and random.random() < LONG_SHARE
            down_ns = LONG_NS if is_long else random.randrange(RESTART_MAX_NS)
            world.timeline.after(down_ns, process.start)

    return happen


def _freeze(world: "World", random: Random) -> None:
    random.choice(world.processes).freeze(_duration_ns(random))


def _cut(world: "World", random: Random) -> None:
    world.wires.cut(random.choice(world.processes), _duration_ns(random))


def _silence(mute: bool, deaf: bool) -> Callable[["World", Random], None]:
    def happen(world: "World", random: Random) -> None:
        process = random.choice(world.processes)
        world.wires.silence(process, _duration_ns(random), mute=mute, deaf=deaf)

    return happen


def _stop_nats(world: "World", random: Random) -> None:
    if world.wires.is_up:
        away_ns = int(100 * MS * (AWAY_MAX_NS / (100 * MS)) ** (random.random() ** 2))
        world.wires.stop(away_ns)


def _jump_clock(world: "World", random: Random) -> None:
    random.choice(world.processes).wall_skew_ns = random.randrange(-10, 10) * SECOND


def _slow_disk(world: "World", random: Random) -> None:
    random.choice(list(world.kvstores.values())).disk_slowness = random.choice([20, 1000, 3000])


def _fill_disk(world: "World", random: Random) -> None:
    random.choice(list(world.kvstores.values())).is_disk_full = True


def _tear_disk(world: "World", random: Random) -> None:
    random.choice(list(world.kvstores.values())).lose_pages(random.choice([0.1, 1.0]))


def _lose_disk(world: "World", random: Random) -> None:
    kvstore = random.choice(list(world.kvstores.values()))
    if kvstore.is_ready:
        kvstore.run(kvstore.life, kvstore.lose_database)


def _break_redis(world: "World", random: Random) -> None:
    what = random.randrange(3)
    if what == 0:
        world.redis.wipe()
    elif what == 1:
        world.redis.takes_writes = False
    else:
        world.redis.is_up = False


_ACTIONS: dict[str, Callable[["World", Random], None]] = {
    "freeze": _freeze,
    "cut": _cut,
    "mute": _silence(mute=True, deaf=False),
    "deaf": _silence(mute=False, deaf=True),
    "nats": _stop_nats,
    "worker": _crash_one_of("worker"),
    "scheduler": _crash_one_of("scheduler"),
    "tracker": _crash_one_of("tracker"),
    "kvstore": _crash_one_of("kvstore"),
    "frontend": _crash_one_of("frontend"),
    "clock": _jump_clock,
    "slow disk": _slow_disk,
    "full disk": _fill_disk,
    "torn disk": _tear_disk,
    "lost disk": _lose_disk,
    "redis": _break_redis,
}
