"""How much of a session is on disk, and that Redis comes to know it whatever happens to Redis."""

from random import Random

import pytest

from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.found_blocks import FoundBlocks
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers import locations as module
from services.kvstore.core.tiers.locations import Locations
from shared.blocks import BlockKey
from shared.locations import HostClaim
from shared.owners import NO_OWNER, OwnerKey

FOX, CROW, HEN = (OwnerKey(name * 16) for name in (b"f", b"c", b"h"))
OWNERS = [FOX, CROW, HEN, OwnerKey(b"o" * 16), OwnerKey(b"w" * 16), NO_OWNER]
ROOT = 0


def name(number: int) -> BlockKey:
    return BlockKey(b"%016d" % number)


def block(number: int, parent: int, owner: OwnerKey, at_ns: int = 1) -> StoredBlock:
    return StoredBlock(name(number), 1, 10, 10, at_ns, at_ns, owner, name(parent))


def chain(first: int, num: int, owner: OwnerKey, parent: int = ROOT) -> list[StoredBlock]:
    """Blocks, each of which continues the one before it."""
    return [
        block(first + at, first + at - 1 if at else parent, owner, first + at) for at in range(num)
    ]


class Redis:
    """What it was sent: by session the life it was said in and a number, and what the host claims.

    Attributes:
        num_sent: sessions, with repetitions.
    """

    def __init__(self) -> None:
        self.said: dict[OwnerKey, tuple[str, int]] = {}
        self.claim: HostClaim | None = None
        self.num_sent = 0

    def check(self, locations: Locations, life: str) -> None:
        locations.on_checked(self.claim, life)

    def take(self, locations: Locations) -> bool:
        """One update arrives; whether it is done, of which its sender does not hear yet."""
        if (update := locations.take()) is None:
            return False
        if update.before is not None and update.before != self.claim:
            locations.on_failed()
            return False
        for owner, num_blocks in update.sessions.items():
            self.num_sent += 1
            self.said.pop(owner, None)
            if num_blocks:
                self.said[owner] = (update.claim.life, num_blocks)
        self.claim = update.claim
        return True

    def take_all(self, locations: Locations) -> int:
        """Everything arrives; how many sessions were sent."""
        num_before = self.num_sent
        while self.take(locations):
            locations.on_sent()
        return self.num_sent - num_before

    @property
    def located(self) -> dict[OwnerKey, int]:
        """What a reader makes of it."""
        life = None if self.claim is None else self.claim.life
        return {owner: num for owner, (said_in, num) in self.said.items() if said_in == life}

    def copy(self) -> "Redis":
        other = Redis()
        other.said, other.claim = dict(self.said), self.claim
        return other


def housed(*blocks: StoredBlock) -> tuple[DiskTier, Locations]:
    """A disk on which these were at the start."""
    disk = DiskTier(10**9)
    locations = Locations(disk)
    disk.find(FoundBlocks.of(blocks))
    locations.on_found()
    return disk, locations


def truth(blocks: dict[int, StoredBlock]) -> dict[OwnerKey, int]:
    """Slow and obvious: the longest sequence that each session made the end of."""
    leading: dict[OwnerKey, int] = {}
    for number, each in blocks.items():
        num, at = 0, number
        while at in blocks:
            num, at = num + 1, int(blocks[at].parent)
        if each.owner != NO_OWNER:
            leading[each.owner] = max(leading.get(each.owner, 0), num)
    return leading


class Walk:
    """A kvstore, its disk and a Redis, to which things happen at random.

    Sessions begin with others' blocks; blocks go from the end, or from within a session, and come
    back; Redis loses everything, goes back, or loses answers; kvstore restarts, disk is reset.

    Attributes:
        here: every block on disk; `gone`: those that were.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk, self.locations = housed()
        self.redis, self._snapshot = Redis(), Redis()
        self.here: dict[int, StoredBlock] = {}
        self._gone: dict[int, StoredBlock] = {}
        self._num_blocks = 0
        self._num_checks = 0

    def step(self) -> None:
        often = [self.add, self.add, self.add, self.remove, self.bring_back, self.tell]
        seldom = [
            self.unacknowledged,
            self.unacknowledged,
            self.lost,
            self.save,
            self.go_back,
            self.wipe,
        ]
        last = [self.restart, self.restart, self.restart, self.lose_disk]
        self.random.choice(self.random.choice([often] * 6 + [seldom] * 3 + [last]))()
        if self.locations.is_in_doubt and self.random.random() < 0.5:
            self.check()

    def check(self) -> None:
        self._num_checks += 1
        self.redis.check(self.locations, f"l{self._num_checks}")

    def add(self) -> None:
        """Where it can be reached: a session that stands on a gap is not counted again with it."""
        self._num_blocks += 1
        whole = [number for number in self.here if self._is_whole(number)]
        parent = self.random.choice([ROOT, *whole[-4:]])
        owner = self.random.choice(OWNERS)
        if parent != ROOT and self.random.random() < 0.7:
            owner = self.here[parent].owner
        self._put(self._num_blocks, parent, owner)

    def remove(self) -> None:
        """Not from under other blocks: they are not counted again for it."""
        number = self.random.choice([ROOT, *self.here])
        if number and self._is_alone(number, self.here[number].owner):
            self._gone[number] = self.here.pop(number)
            self.disk.remove(name(number))

    def bring_back(self) -> None:
        """As `remove`."""
        number = self.random.choice([ROOT, *self._gone])
        if number and self._is_alone(number, self._gone[number].owner):
            again = self._gone.pop(number)
            self._put(number, int(again.parent), again.owner)

    def tell(self) -> None:
        self.redis.take_all(self.locations)

    def unacknowledged(self) -> None:
        """It is done, and not acknowledged."""
        if self.redis.take(self.locations):
            self.locations.on_failed()

    def lost(self) -> None:
        """It is not done."""
        if self.locations.take() is not None:
            self.locations.on_failed()

    def save(self) -> None:
        self._snapshot = self.redis.copy()

    def go_back(self) -> None:
        self.redis = self._snapshot.copy()

    def wipe(self) -> None:
        self.redis = Redis()

    def restart(self) -> None:
        blocks = [block(n, int(each.parent), each.owner) for n, each in self.here.items()]
        self.random.shuffle(blocks)
        self.disk, self.locations = housed(*blocks)

    def lose_disk(self) -> None:
        self.disk.clear()
        self.locations.on_lost()
        self.here, self._gone = {}, {}

    def _put(self, number: int, parent: int, owner: OwnerKey) -> None:
        self.here[number] = block(number, parent, owner)
        self.disk.add(block(number, parent, owner))

    def _is_whole(self, number: int) -> bool:
        return number == ROOT or (
            number in self.here and self._is_whole(int(self.here[number].parent))
        )

    def _is_alone(self, number: int, owner: OwnerKey) -> bool:
        under = self._under(number)
        return all(self.here[each].owner == owner != NO_OWNER for each in under)

    def _under(self, number: int) -> list[int]:
        """Every block that continues this one."""
        children = [each for each, b in self.here.items() if int(b.parent) == number]
        return [*children, *(below for child in children for below in self._under(child))]


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_what_redis_says_is_what_is_on_disk(first: int) -> None:
    for seed in range(first, first + 250):
        walk = Walk(seed)
        for _ in range(10):
            for _ in range(walk.random.randrange(12)):
                walk.step()
            for _ in range(2):  # what a check finds is said again; what is in step is not
                walk.check()
                num_sent = walk.redis.take_all(walk.locations)
                assert walk.redis.located == truth(walk.here), f"seed {seed}"
                assert walk.locations.said == walk.redis.claim and not walk.locations.has_news
            assert num_sent == 0
        walk.restart()
        walk.check()
        assert walk.redis.take_all(walk.locations) == 0, f"seed {seed}: the disk shows as much"


def test_a_session_that_continues_another_s_beginning_is_counted_from_there() -> None:
    disk, _ = housed(*chain(1, 3, FOX), *chain(4, 2, CROW, parent=2))
    assert disk.count_all_leading() == {FOX: 3, CROW: 4}
    assert disk.count_leading(CROW) == 4 and disk.count_leading(HEN) == 0


def test_parents_found_after_their_children_and_a_circle_end() -> None:
    blocks = chain(1, 5000, FOX)  # deeper than anything that recurses gets
    disk, _ = housed(*reversed(blocks), block(9001, 9002, CROW), block(9002, 9001, CROW))
    leading = disk.count_all_leading()
    assert leading[FOX] == 5000 and leading[CROW] <= 3


def test_a_block_that_comes_late_lifts_those_that_waited_for_it() -> None:
    disk, locations = housed()
    redis = Redis()
    redis.check(locations, "a")
    blocks = chain(1, 6, FOX)
    for each in blocks[:2] + blocks[3:]:
        disk.add(each)
    redis.take_all(locations)
    assert redis.located == {FOX: 3}, "what is behind the gap counts from there"
    disk.add(blocks[2])
    redis.take_all(locations)
    assert redis.located == {FOX: 6}


def test_a_restart_that_finds_what_was_said_says_nothing() -> None:
    _, locations = housed(*chain(1, 3, FOX), *chain(4, 2, CROW))
    redis = Redis()
    redis.check(locations, "a")
    assert redis.take_all(locations) == 2
    again, locations = housed(*reversed(chain(1, 3, FOX)), *chain(4, 2, CROW))
    again.remove(name(5))  # expired at the start, before Redis is asked
    redis.check(locations, "b")
    assert redis.claim is not None and redis.claim.life == "a"
    assert redis.take_all(locations) == 1, "that one"
    assert redis.located == {FOX: 3, CROW: 1}
    _, locations = housed(*chain(1, 2, FOX), *chain(4, 1, CROW))
    redis.check(locations, "c")
    assert redis.take_all(locations) == 2 and redis.claim.life == "c", "it was not quite that"


def test_redis_that_was_away_hears_only_what_changed() -> None:
    disk, locations = housed(*chain(1, 3, FOX), *chain(4, 2, CROW))
    redis = Redis()
    redis.check(locations, "a")
    redis.take_all(locations)
    for each in chain(6, 4, FOX, parent=3):
        disk.add(each)
        assert locations.take() is not None
        locations.on_failed()
        assert locations.take() is None, "it has to be asked first"
        redis.check(locations, "b")
    assert redis.take_all(locations) == 1
    assert redis.located == {FOX: 7, CROW: 2} and redis.said[CROW] == ("a", 2)
    disk.add(block(10, 9, FOX))
    assert redis.take(locations), "this time it is done, and not acknowledged"
    locations.on_failed()
    redis.check(locations, "b")
    assert redis.take_all(locations) == 1
    assert redis.located == {FOX: 8, CROW: 2} and redis.said[CROW] == ("a", 2)


def test_sessions_that_come_and_go_while_redis_is_away_leave_nothing() -> None:
    disk, locations = housed(*chain(1, 1, FOX))
    redis = Redis()
    redis.check(locations, "a")
    redis.take_all(locations)
    locations.on_failed()
    for number in range(2, 50):
        disk.add(block(number, ROOT, OwnerKey(b"%016d" % number)))
        disk.remove(name(number))
    assert not locations.has_news
    disk.remove(name(1))
    redis.check(locations, "b")
    assert redis.take_all(locations) == 1 and not redis.said


def test_a_use_renews_once_in_a_while_and_once_a_session() -> None:
    disk, locations = housed(*chain(1, 3, FOX))
    redis = Redis()
    redis.check(locations, "a")
    redis.take_all(locations)
    keys = [name(number) for number in (3, 2, 1)]
    assert disk.use(keys, now_ns=50, stale_ns=100) == []
    assert not locations.has_news
    disk.use(keys, now_ns=500, stale_ns=100)
    assert redis.take_all(locations) == 1
    disk.use(keys, now_ns=550, stale_ns=100)
    assert redis.take_all(locations) == 0 and redis.located == {FOX: 3}


def test_no_update_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 7)
    monkeypatch.setattr(module, "COUNTED_MAX", 40)
    blocks = [each for n in range(30) for each in chain(100 * n + 1, 20, OwnerKey(b"%16d" % n))]
    disk, locations = housed(*blocks)
    redis, sizes = Redis(), list[int]()
    redis.check(locations, "a")
    while (update := locations.take()) is not None:
        sizes.append(len(update.sessions))
        locations.on_sent()
    assert sum(sizes) == 30 and max(sizes) <= 2, "as many as are counted in one go"
    for number in range(30):
        disk.use([name(100 * number + 20)], now_ns=10**6, stale_ns=100)
    sizes = []
    while (update := locations.take()) is not None:
        sizes.append(len(update.sessions))
        locations.on_sent()
    assert sizes == [7, 7, 7, 7, 2]


def test_sessions_that_memory_keeps_when_the_disk_is_lost_are_sent_to_a_redis_without_any() -> None:
    """Redis has the claim of this life and no session: nothing there shows what is missing."""
    tier, locations = housed()
    redis = Redis()
    redis.check(locations, "a")
    redis.take_all(locations)
    for each in chain(1, 3, FOX):
        tier.add(each)
    assert locations.take() is not None
    locations.on_failed()
    locations.on_lost()
    redis.check(locations, "b")
    redis.take_all(locations)
    assert redis.located == {FOX: 3}
