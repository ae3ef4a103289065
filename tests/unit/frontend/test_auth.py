"""API keys: who is let in, and which settings end the start."""

import base64
import hashlib
import json
from pathlib import Path

import pytest

from services.frontend.auth import Forbidden, Keyring, Unauthenticated, load_keyring
from services.frontend.config import FrontendConfig
from shared.errors import ConfigError


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
