"""API keys: who is let in, and which settings end the start."""

import base64
import hashlib
import json
from pathlib import Path

import pytest

from services.frontend.config import FrontendConfig
from services.frontend.core.limits.quotas import TenantLimits
from services.frontend.tenants.auth import Forbidden, Keyring, Unauthenticated, load_keyring
from shared.errors import ConfigError
from shared.ids import DEFAULT_TENANT, TenantId
from shared.runtime.config import load_config


def keyring(tmp_path: Path) -> Keyring:
    path = tmp_path / "keys.json"
    keys = [
        {"key": "plain", "tenant": "a"},
        {"key_sha256": hashlib.sha256(b"hashed").hexdigest(), "tenant": "b", "scopes": ["admin"]},
    ]
    path.write_text(json.dumps(keys))
    return load_keyring(FrontendConfig(api_keys_file=path, http_address="0.0.0.0"))


def test_keys_give_tenant_and_scopes(tmp_path: Path) -> None:
    ring = keyring(tmp_path)
    assert not ring.is_open
    assert ring.caller("Bearer plain", "inference").tenant == "a"
    assert ring.caller("bearer hashed", "anything").tenant == "b"
    basic = base64.b64encode(b"me:plain").decode()
    assert ring.caller(f"Basic {basic}", "metrics").tenant == "a"
    with pytest.raises(Forbidden):
        ring.caller("Bearer plain", "admin")


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic !!", "Basic eA==", "Digest plain"]
)
def test_others_are_not_let_in(tmp_path: Path, header: str) -> None:
    with pytest.raises(Unauthenticated):
        keyring(tmp_path).caller(header, "inference")


def test_one_header_decides(tmp_path: Path) -> None:
    ring = keyring(tmp_path)
    assert ring.caller("", "inference", " plain ").tenant == "a"
    assert ring.caller("Bearer hashed", "inference", "plain").tenant == "b"
    for header, key in (("", "wrong"), ("", " "), ("Bearer wrong", "plain"), ("Bearer", "plain")):
        with pytest.raises(Unauthenticated):
            ring.caller(header, "inference", key)


def test_only_loopback_is_open_without_keys() -> None:
    for address in ("127.0.0.1", "::1", "localhost"):
        assert load_keyring(FrontendConfig(http_address=address)).is_open
    assert load_keyring(FrontendConfig(http_address="0.0.0.0", allow_anonymous=True)).is_open
    for address in ("0.0.0.0", "::", "example.org"):
        with pytest.raises(ConfigError, match="SYMPHONY_API_KEYS_FILE"):
            load_keyring(FrontendConfig(http_address=address))


@pytest.mark.parametrize("text", ["", "{}", '[{"tenant": "a"}]', '[{"key": "x", "typo": 1}]'])
def test_a_wrong_file_ends_the_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="SYMPHONY_API_KEYS_FILE"):
        load_keyring(FrontendConfig(api_keys_file=path))
    with pytest.raises(ConfigError, match="No such file"):
        load_keyring(FrontendConfig(api_keys_file=tmp_path / "none"))


def ring_of(tmp_path: Path, *entries: dict[str, object], **settings: object) -> Keyring:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(entries))
    return load_keyring(FrontendConfig.model_validate({"api_keys_file": path, **settings}))


def test_a_tenant_s_limits_are_those_it_is_given_and_else_the_default(tmp_path: Path) -> None:
    limits = {"turns": 8, "sessions": 0, "priority": [-1, 1], "kv_expiry_s": 60}
    ring = ring_of(
        tmp_path,
        {"key": "1", "tenant": "a"},
        {"key": "2", "tenant": "a", "limits": limits},
        {"key": "3", "tenant": "a", "limits": dict(reversed(limits.items()))},
        {"key": "4", "tenant": "b"},
        {"key": "5", "limits": {"jobs": 1}},
        tenant_kv_expiry_s_max=100,
    )
    assert set(ring.limits) == {"a", DEFAULT_TENANT}
    assert ring.limits[TenantId("a")] == TenantLimits(
        turns=8,
        sessions=0,
        session_bytes=256 * 1024 * 1024,
        priority=(-1, 1),
        kv_expiry_s=60,
        kv_expiry_s_max=100,
    )
    assert ring.limits[DEFAULT_TENANT].jobs == 1


@pytest.mark.parametrize(
    "limits",
    [
        {"turns": -1},
        {"turns": "8"},
        {"turns": 1.5},
        {"turns": True},
        {"priority": [1, -1]},
        {"priority": [1]},
        {"advisories": 1},
        {"kv_expiry_s": 31_536_001},
        {"kv_expiry_s_max": -1},
    ],
)
def test_wrong_limits_end_the_start(tmp_path: Path, limits: object) -> None:
    with pytest.raises(ConfigError, match=r"SYMPHONY_API_KEYS_FILE.*entry \(1, 'limits'"):
        ring_of(tmp_path, {"key": "1"}, {"key": "2", "limits": limits})


def test_entries_of_a_tenant_agree_on_its_limits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"entry 2: .*'a'"):
        ring_of(
            tmp_path,
            {"key": "1", "tenant": "a", "limits": {"turns": 1}},
            {"key": "2", "tenant": "b", "limits": {"turns": 2}},
            {"key": "3", "tenant": "a", "limits": {"turns": 2}},
        )


def test_a_range_of_priorities_is_given_as_json() -> None:
    name = "SYMPHONY_TENANT_PRIORITY"
    assert load_config(FrontendConfig, {name: "[-3, 4]"}).tenant_limits.priority == (-3, 4)
    for wrong in ("[4, -3]", "[1]", "4"):
        with pytest.raises(ConfigError, match=name):
            load_config(FrontendConfig, {name: wrong})
