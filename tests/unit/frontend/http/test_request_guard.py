"""Which hosts and pages are let in."""

import pytest

from services.frontend.config import FrontendConfig
from services.frontend.core.http.request_guard import RequestGuard, is_json, parse_host
from shared.errors import ConfigError
from shared.runtime.config import load_config

AT_HOME = RequestGuard(address="127.0.0.1")
ANYWHERE = RequestGuard(address="0.0.0.0")


def allowing(*names: str, address: str = "127.0.0.1") -> RequestGuard:
    config = FrontendConfig(allow_hosts=list(names))
    return RequestGuard(address=address, allowed=config.allowed_places)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "127.0.0.1:80", "127.9.9.9", "[::1]:8080", "localhost.", None],
)
def test_this_machine_s_own_names_are_let_in(host: str | None) -> None:
    assert AT_HOME.admits_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
        "10.0.0.7:8080", "frontend:8080", "", ":8080", "localhost:x", "localhost:99999",
        "me@localhost", "localhost/x", "localhost?x", "loc alhost", "127.0.0.1@evil.example",
        "[::1", "[::2]", "localhost:", "2130706433",
    ],
)  # fmt: skip
def test_other_names_are_not(host: str) -> None:
    assert not AT_HOME.admits_host(host)


def test_beyond_loopback_addresses_and_bare_names_are_let_in() -> None:
    for host in ("localhost:8080", "frontend:8080", "10.0.0.7", "[fe80::1]:8080", "my_service"):
        assert ANYWHERE.admits_host(host), host
    assert not ANYWHERE.admits_host("evil.example:8080")
    assert RequestGuard(address="10.0.0.7").admits_host("10.0.0.7:8080")
    assert RequestGuard(address="box.lan").admits_host("box.lan:8080")


def test_a_key_proves_more_than_a_name() -> None:
    door = RequestGuard(address="127.0.0.1", asks_for_keys=True)
    assert door.admits_host("chat.example.org")
    assert not door.admits_page("POST", "chat.example.org", "https://evil.example", "")


def test_allowed_names_count_for_every_port_or_for_one() -> None:
    door = allowing("Chat.example.org", "box.lan:8080")
    assert door.admits_host("chat.example.org") and door.admits_host("chat.example.org:81")
    assert door.admits_host("box.lan:8080")
    assert not door.admits_host("box.lan:81") and not door.admits_host("example.org")


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("localhost", "http://localhost:80"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("chat.example.org", "https://chat.example.org"),  # a proxy ended TLS
    ],
)
def test_our_own_page_may_send(host: str, origin: str) -> None:
    assert AT_HOME.admits_page("POST", host, origin, "same-origin")


@pytest.mark.parametrize(
    "origin",
    [
        "null", "", "http://evil.example", "http://localhost", "http://localhost:3000",
        "http://127.0.0.1:8080", "ftp://localhost:8080", "file://", "localhost:8080",
        "http://localhost:8080@evil.example", "http://localhost:8080.evil.example",
    ],
)  # fmt: skip
def test_other_pages_may_not(origin: str) -> None:
    for method in ("POST", "GET", "DELETE"):
        assert not AT_HOME.admits_page(method, "localhost:8080", origin, "")


def test_pages_of_allowed_names_may() -> None:
    door = allowing("chat.example.org", "localhost:3000")
    for origin in ("https://chat.example.org", "http://localhost:3000", "app://localhost:3000"):
        assert door.admits_page("POST", "127.0.0.1:8080", origin, "cross-site"), origin
    assert not door.admits_page("POST", "127.0.0.1:8080", "http://localhost:3001", "same-site")


def test_requests_that_are_no_page_s_are_let_in() -> None:
    assert AT_HOME.admits_page("POST", "localhost:8080", None, "")
    assert AT_HOME.admits_page("POST", None, None, "")
    assert AT_HOME.admits_page("GET", "localhost", None, "cross-site"), "a link was followed"
    assert not AT_HOME.admits_page("POST", "localhost", None, "cross-site")


def test_names_are_checked_at_the_start() -> None:
    config = load_config(FrontendConfig, {"SYMPHONY_ALLOW_HOSTS": '["chat.example.org"]'})
    assert config.allowed_places == {parse_host("chat.example.org")}
    for value in ('["https://chat.example.org"]', '["*"]', '[""]', "chat.example.org"):
        with pytest.raises(ConfigError, match="SYMPHONY_ALLOW_HOSTS"):
            load_config(FrontendConfig, {"SYMPHONY_ALLOW_HOSTS": value})


@pytest.mark.parametrize(
    "kind",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
     "application/jsonp", "text/json", "text/plain+json", "application/json, text/plain"],
)  # fmt: skip
def test_what_forms_can_send_is_no_json(kind: str) -> None:
    assert not is_json(kind)


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON ;charset=utf-8", "application/vnd.api+json"]
)
def test_json_is_json(kind: str) -> None:
    assert is_json(kind)
