"""Where sessions' KV is, as Redis knows it."""

from shared.ids import HostId
from shared.locations import (
    ANYWHERE,
    BLOCKS_MAX,
    HOSTS_SENT_MAX,
    OBJECTS_SENT_MAX,
    decode_locations,
    encode_location,
    is_objects,
    known_places,
    objects_of,
    worth_keeping,
)

HOSTS = [HostId(f"h{number}") for number in range(HOSTS_SENT_MAX)]
LIVES = {**dict.fromkeys(HOSTS, "a"), **dict.fromkeys(map(objects_of, HOSTS), "a")}


def located(num_blocks: dict[HostId, int]) -> dict[HostId, int]:
    fields = {name.encode(): encode_location("a", num).encode() for name, num in num_blocks.items()}
    return decode_locations(fields, LIVES)


def test_what_is_in_the_object_store_crowds_out_no_host() -> None:
    objects = {objects_of(host_id): 20 + number for number, host_id in enumerate(HOSTS)}
    told = located({**objects, HOSTS[0]: 5, HOSTS[1]: 6})
    assert list(told.items()) == [("@h7", 27), ("@h6", 26), ("h1", 6), ("h0", 5)]


def test_the_most_of_the_object_store_is_told_beside_any_hosts() -> None:
    hosts = dict.fromkeys(HOSTS, 10)
    told = located({**hosts, objects_of(HOSTS[0]): 20, objects_of(HOSTS[1]): 3})
    assert len(told) == HOSTS_SENT_MAX
    assert [each for each in told if is_objects(each)] == ["@h0"] and OBJECTS_SENT_MAX == 2


def test_anywhere_is_said_in_messages_and_never_read_from_redis() -> None:
    told = {ANYWHERE: BLOCKS_MAX, HOSTS[0]: 3}
    assert worth_keeping(told) == told
    assert worth_keeping({ANYWHERE: 0}) == worth_keeping({HostId("*.>"): 3}) == {}
    assert known_places(told) == {HOSTS[0]: 3}
    fields = {ANYWHERE.encode(): encode_location("a", 3).encode()}
    assert decode_locations(fields, {ANYWHERE: "a"}) == {}
