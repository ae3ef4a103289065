"""Faults, done to a world: some from the beginning on, others in their time."""

from collections.abc import Callable
from functools import partial
from random import Random

from loadtest.sim.redis import WAY_MAX_NS
from loadtest.sim.services.device import Breaks
from loadtest.sim.services.faults import Fault
from loadtest.sim.services.scheduler import QUEUE_MAX
from loadtest.sim.services.service import Service
from loadtest.sim.timeline import MS, SECOND
from loadtest.world.world import World

RESTART_MAX_NS = 4 * SECOND
AWAY_MAX_NS = 60 * SECOND
LONG_SHARE, LONG_NS = 0.2, 40 * SECOND  # of workers: their models are large
UNREAD_SHARE = 0.2
SNAPSHOT_NS = 2 * SECOND  # of Redis: what it goes back to
REDIS_AWAY_NS = 30 * SECOND
STORE_AWAY_NS = 6 * SECOND
PROBE_SHARE = 0.25
DROPPED_SHARE = 0.3
REDIS_SLOW_NS = (50 * MS, 200 * MS, 800 * MS)  # a way, at most; clients wait for 250 ms
KVSTORE_DEATHS, BETWEEN_DEATHS_NS = 3, 1500 * MS  # in a row, of one kvstore


def unleash(world: World) -> None:
    """Let the world's faults happen in their time."""
    faults, deployment = world.faults, world.deployment
    random, weather = deployment.fault_random, deployment.wires.weather
    if "loss" in faults.kinds:
        weather.loss = random.choice([0.002, 0.01, 0.03])
    if "duplication" in faults.kinds:
        weather.duplication = random.choice([0.01, 0.1])
    if "garbled" in faults.kinds:
        weather.garbled = random.choice([0.002, 0.02])
    if "delay" in faults.kinds:
        weather.slow, weather.delay_max_ns = 0.03, random.choice([10, 100]) * MS
    if "queue" in faults.kinds:
        queue_max = random.choice([4, 16])
        for scheduler in world.schedulers:
            scheduler.queue_max = queue_max
    if "unread disk" in faults.kinds:
        for kvstore in world.kvstores.values():
            kvstore.disk.unread_share = UNREAD_SHARE
    if "redis" in faults.kinds:
        deployment.timeline.after(SNAPSHOT_NS, world.redis.save)
    for fault in faults.once:
        action = _ACTIONS[fault.kind]
        deployment.timeline.after(fault.at_ns, _happening(world, fault, action))


def heal(world: World) -> None:
    """From now on nothing goes wrong any more; what is down or frozen comes back in its time."""
    weather = world.deployment.wires.weather
    weather.loss = weather.duplication = weather.slow = weather.garbled = 0.0
    weather.delay_max_ns = 2 * MS
    world.store.is_up = True
    world.redis.takes_writes, world.redis.way_max_ns = True, WAY_MAX_NS
    if world.bucket is not None:
        world.bucket.is_away = world.bucket.is_slow = False
    for kvstore in world.kvstores.values():
        disk = kvstore.disk
        disk.is_full, disk.slowness, disk.unread_share = False, 1, 0.0
        kvstore.is_link_cut = kvstore.is_lying = False
    for scheduler in world.schedulers:
        scheduler.queue_max = QUEUE_MAX
    for worker in world.workers:
        if worker.device is not None and not worker.device.is_broken:
            worker.device.breaks = ""


def _happening(
    world: World, fault: Fault, action: Callable[[World, Random], None]
) -> Callable[[], None]:
    def happen() -> None:
        world.deployment.timeline.note(fault.kind)
        action(world, Random(fault.draw))

    return happen


def _duration_ns(random: Random) -> int:
    """0.1 to 20 s, more often short, and often as long as a probe takes."""
    if random.random() < PROBE_SHARE:
        return random.randrange(2 * SECOND, 5 * SECOND)
    return int(100 * MS * 200 ** random.random())


def _crash_one_of(kind: str) -> Callable[[World, Random], None]:
    def happen(world: World, random: Random) -> None:
        process = random.choice([p for p in world.processes if p.name.startswith(kind)])
        if process.is_up:
            process.crash()
            is_long = kind == "worker" and random.random() < LONG_SHARE
            down_ns = LONG_NS if is_long else random.randrange(RESTART_MAX_NS)
            world.deployment.timeline.after(down_ns, process.start)

    return happen


def _break_device(breaks: Breaks) -> Callable[[World, Random], None]:
    """In the next step of a worker."""

    def happen(world: World, random: Random) -> None:
        device = random.choice(world.workers).device
        if device is not None and not device.is_broken:
            device.breaks = breaks

    return happen


def _terminate(world: World, random: Random) -> None:
    """An orderly end, as an upgrade asks for; then it starts again."""
    services = [each for each in world.processes if isinstance(each, Service)]
    random.choice(services).terminate()


def _crash_kvstore_again(world: World, random: Random) -> None:
    """The same one dies, comes back, and dies again before all is as it was."""
    kvstore = random.choice(list(world.kvstores.values()))

    def die(num_left: int) -> None:
        if kvstore.is_up:
            kvstore.crash()
            world.deployment.timeline.after(random.randrange(SECOND), partial(live, num_left - 1))

    def live(num_left: int) -> None:
        kvstore.start()
        if num_left:
            world.deployment.timeline.after(
                random.randrange(BETWEEN_DEATHS_NS), partial(die, num_left)
            )

    die(KVSTORE_DEATHS)


def _lose_host(world: World, random: Random) -> None:
    """A machine dies for good, with its arena and its disk, unless no other one has a worker."""
    of_host = {worker.host_id for worker in world.workers}
    if len(of_host) > 1:
        world.lose_host(random.choice(sorted(of_host)))


def _freeze(world: World, random: Random) -> None:
    """A process stands still; the server may drop it meanwhile, since it reads nothing."""
    process, duration_ns = random.choice(world.processes), _duration_ns(random)
    process.freeze(duration_ns)
    if process.is_up and random.random() < DROPPED_SHARE:
        dropped_in_ns = random.randrange(duration_ns)
        world.deployment.timeline.after(
            dropped_in_ns, partial(world.deployment.wires.cut, process, 1)
        )


def _cut(world: World, random: Random) -> None:
    world.deployment.wires.cut(random.choice(world.processes), _duration_ns(random))


def _silence(mute: bool, deaf: bool) -> Callable[[World, Random], None]:
    def happen(world: World, random: Random) -> None:
        process = random.choice(world.processes)
        world.deployment.wires.silence(process, _duration_ns(random), mute=mute, deaf=deaf)

    return happen


def _stop_nats(world: World, random: Random) -> None:
    if world.deployment.wires.is_up:
        away_ns = int(100 * MS * (AWAY_MAX_NS / (100 * MS)) ** (random.random() ** 2))
        world.deployment.wires.stop(away_ns)


def _jump_clock(world: World, random: Random) -> None:
    random.choice(world.processes).wall_skew_ns = random.randrange(-10, 10) * SECOND


def _slow_disk(world: World, random: Random) -> None:
    random.choice(list(world.kvstores.values())).disk.slowness = random.choice([20, 1000, 3000])


def _fill_disk(world: World, random: Random) -> None:
    random.choice(list(world.kvstores.values())).disk.is_full = True


def _tear_disk(world: World, random: Random) -> None:
    random.choice(list(world.kvstores.values())).disk.damage_pages(random.choice([0.1, 1.0]))


def _lose_disk(world: World, random: Random) -> None:
    random.choice(list(world.kvstores.values())).disk.is_damaged = True


def _lose_leases(world: World, random: Random) -> None:
    """The store of leases does not answer for a while, and may have forgotten them."""
    store, forgets = world.store, random.random() < 0.5
    store.is_up = False

    def come_back() -> None:
        if store.is_up:  # again, for long
            return
        if forgets:
            store.forget()
        store.is_up = True

    world.deployment.timeline.after(random.randrange(STORE_AWAY_NS), come_back)


def _cut_link(world: World, random: Random) -> None:
    kvstore = random.choice(list(world.kvstores.values()))
    kvstore.is_link_cut = True

    def mend() -> None:
        kvstore.is_link_cut = False

    world.deployment.timeline.after(_duration_ns(random), mend)


def _lie(world: World, random: Random) -> None:
    random.choice(list(world.kvstores.values())).is_lying = True


def _break_bucket(world: World, random: Random) -> None:
    bucket, share = world.bucket, random.choice([0.3, 1.0])
    if bucket is None:
        return
    what = random.randrange(3)
    if what == 0:
        bucket.lose(random, share)
    elif what == 1:
        bucket.damage(random, share)
    else:
        bucket.is_away = True

        def come_back() -> None:
            bucket.is_away = False

        world.deployment.timeline.after(_duration_ns(random), come_back)


def _slow_bucket(world: World, random: Random) -> None:
    bucket = world.bucket
    if bucket is None:
        return
    bucket.is_slow = True

    def recover() -> None:
        bucket.is_slow = False

    world.deployment.timeline.after(_duration_ns(random), recover)


def _break_redis(world: World, random: Random) -> None:
    """Where it goes away it stays so when all else is well again, and may have forgotten."""
    redis, what = world.redis, random.randrange(5)
    if what == 0:
        redis.wipe()
    elif what == 1:
        redis.go_back()
    elif what == 2:
        redis.takes_writes = False
    elif what == 3:
        redis.way_max_ns = random.choice(REDIS_SLOW_NS)
    else:
        redis.stop(hangs=random.random() < 0.5)
        forgets: Callable[[], None] | None = random.choice([redis.wipe, redis.go_back, None])

        def come_back() -> None:
            if forgets is not None:
                forgets()
            redis.start()

        world.deployment.timeline.after(random.randrange(REDIS_AWAY_NS) + 1, come_back)


_ACTIONS: dict[str, Callable[[World, Random], None]] = {
    "freeze": _freeze,
    "cut": _cut,
    "mute": _silence(mute=True, deaf=False),
    "deaf": _silence(mute=False, deaf=True),
    "nats": _stop_nats,
    "worker": _crash_one_of("worker"),
    "scheduler": _crash_one_of("scheduler"),
    "tracker": _crash_one_of("tracker"),
    "kvstore": _crash_one_of("kvstore"),
    "kvstores": _crash_kvstore_again,
    "host": _lose_host,
    "frontend": _crash_one_of("frontend"),
    "clock": _jump_clock,
    "slow disk": _slow_disk,
    "full disk": _fill_disk,
    "torn disk": _tear_disk,
    "lost disk": _lose_disk,
    "redis": _break_redis,
    "link": _cut_link,
    "liar": _lie,
    "bucket": _break_bucket,
    "slow bucket": _slow_bucket,
    "term": _terminate,
    "lost device": _break_device("lost"),
    "hung device": _break_device("hung"),
    "leases": _lose_leases,
}
