"""Requests in the docs, held against what a house takes: endpoints, bodies, subjects."""

import json
import re
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import jsonschema

from cli.docs.http_page import openapi
from shared.wire import subjects
from shared.wire.messages import decode
from shared.wire.subjects import INFERENCE_SUBMIT, PUBLIC, Subject
from tests.docs.shell import Command

HOUSE = "http://127.0.0.1:8080"
WITH_VALUE = {"-X", "-H", "-d", "-F", "-o"}
NOT_DESCRIBED = {"/openapi.json"}


described = cache(openapi)


def check_curl(command: Command) -> None:
    """The endpoint exists, and the body is one that it describes."""
    method, url, body, is_form = "", "", "", False
    words = iter(command.words[1:])
    for word in words:
        value = next(words) if word in WITH_VALUE else ""
        match word:
            case "-X":
                method = value
            case "-d":
                body = value
            case "-F":
                is_form = True
            case "-H" | "-o":
                pass
            case _ if word.startswith("-"):
                assert set(word) <= set("-sSNfi"), f"curl {word}"
            case _:
                assert not url, f"two addresses: {url}, {word}"
                url = word
    assert url.startswith(f"{HOUSE}/"), url
    method = method or ("POST" if body or is_form else "GET")
    path = urlsplit(url).path
    if path in NOT_DESCRIBED:
        return
    operation = _operation(method, path)
    content = operation.get("requestBody", {}).get("content", {})
    if is_form:
        assert "multipart/form-data" in content, f"{method} {path} takes no form"
    elif body not in ("", "@-"):
        jsonschema.validate(json.loads(body), content["application/json"]["schema"])


def _operation(method: str, path: str) -> dict[str, Any]:
    for template, methods in described()["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and method.lower() in methods:
            found: dict[str, Any] = methods[method.lower()]
            return found
    raise AssertionError(f"no {method} {path}")


def check_nats(command: Command) -> None:
    """The subject is public, and the body is one that it takes; `sub` may be for any."""
    words = [word for word in command.words[1:] if not word.startswith("--")]
    verb, *rest = (word for word in words if not re.fullmatch(r"\d+s", word))
    if verb == "sub":
        return
    assert verb in ("request", "publish"), f"nats {verb}"
    subject, body = rest
    assert subject in PUBLIC, f"{subject} is not public"
    if subject == INFERENCE_SUBMIT:
        chat = _operation("POST", "/v1/chat/completions")["requestBody"]["content"]
        jsonschema.validate(json.loads(body), chat["application/json"]["schema"])
        return
    table = {each.pattern: each for each in vars(subjects).values() if isinstance(each, Subject)}
    decode(table[subject].request, body.encode())
