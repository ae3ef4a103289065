"""Addresses: what is refused, and that no password is ever shown."""

import pytest

from shared.runtime.urls import check_nats_url, check_redis_url, hide_password


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://host:4222", "nats://host:4222"),
        ("nats://me:secret@host:4222", "nats://***@host:4222"),
        ("nats://secret@host", "nats://***@host"),
        ("redis://:se/cr@et@host:6379/0", "redis://***@host:6379/0"),
        ("me:secret@host:6379", "***@host:6379"),
        ("redis://host/0?password=secret&db=1", "redis://host/0?password=***&db=1"),
        ("unix:///run/redis.sock?db=1&password=secret", "unix:///run/redis.sock?db=1&password=***"),
    ],
)
def test_what_people_read_holds_no_password(url: str, expected: str) -> None:
    assert hide_password(url) == expected


@pytest.mark.parametrize(
    "url", ["nats://127.0.0.1:4222", "nats://u:p@n", "tls://n", "nats://[::1]:1"]
)
def test_addresses_of_nats(url: str) -> None:
    assert check_nats_url(url) == url


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:4222", "http://n:1", "nats://", "nats://n:secret", "nats://n:0", "nats://n:70000",
     "nats://a secret b:1", "nats://[::secret", "nats:n:1"],
)  # fmt: skip
def test_what_is_no_address_of_nats_is_refused_unquoted(url: str) -> None:
    with pytest.raises(ValueError, match=r"write it as|no number|names no") as caught:
        check_nats_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["redis://r", "redis://:p@r:1/0", "rediss://r:1", "unix:///run/r.sock", "redis://r/3?x=1"],
)
def test_addresses_of_redis(url: str) -> None:
    assert check_redis_url(url) == url


@pytest.mark.parametrize("url", ["", "r:1", "nats://r:1", "redis://", "redis://r/db", "unix://"])
def test_what_is_no_address_of_redis_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"write it as|no number|names no"):
        check_redis_url(url)
