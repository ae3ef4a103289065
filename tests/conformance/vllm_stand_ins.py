"""Lets vLLM's own tests ask a deployment of ours: stands in for vLLM's modules, and for what starts
its server. A test that needs more of vLLM than that is skipped.

pytest loads it (`-p`) in a process that runs in vLLM's source; `test_vllm_suites` starts that.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

URL = os.environ["CONFORMANCE_URL"]
ADAPTER = os.environ["CONFORMANCE_ADAPTER"]
TOKENIZER = os.environ["CONFORMANCE_TOKENIZER"]
RESULTS = Path(os.environ["CONFORMANCE_RESULTS"])


class Part(type):
    """Something of vLLM, which there is not here."""

    def __getattr__(cls, name: str) -> "Part":
        if name.startswith("__"):
            raise AttributeError(name)
        return part(f"{cls.__name__}.{name}")

    def __call__(cls, *_: Any, **__: Any) -> Any:
        pytest.skip(f"needs vLLM itself: {cls.__name__}", allow_module_level=True)


def part(name: str) -> Part:
    """The stand-in for a name."""
    return Part(name, (), {})


class Server:
    """In the place of `RemoteOpenAIServer`: our deployment, which goes by each model's name.

    Args:
        args: of `vllm serve`; only adapters are heeded.
    """

    DUMMY_API_KEY = "none"

    def __init__(self, model: str, args: Sequence[str] = (), **_: Any) -> None:
        self.host, self.port = httpx.URL(URL).host, httpx.URL(URL).port
        self.url_root = URL
        for name, path in _adapters(args):
            answer = httpx.post(
                self.url_for("v1", "load_lora_adapter"),
                json={"lora_name": name, "lora_path": path}, timeout=60,
            )  # fmt: skip
            assert answer.is_success or "already" in answer.text, answer.text

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join([URL, *(part.strip("/") for part in parts if part)])

    def get_client(self, **more: Any) -> Any:
        return self._client("openai", "OpenAI", "v1", more)

    def get_async_client(self, **more: Any) -> Any:
        return self._client("openai", "AsyncOpenAI", "v1", more)

    def get_client_anthropic(self, **more: Any) -> Any:
        return self._client("anthropic", "Anthropic", "", more)

    def get_async_client_anthropic(self, **more: Any) -> Any:
        return self._client("anthropic", "AsyncAnthropic", "", more)

    def _client(self, module: str, kind: str, path: str, more: dict[str, Any]) -> Any:
        made = getattr(importlib.import_module(module), kind)
        given = {"timeout": 600, **more}
        return made(base_url=self.url_for(path), api_key="none", max_retries=0, **given)


def _adapters(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    words = iter(args)
    for word in words:
        if word == "--lora-modules":
            for given in words:
                if given.startswith("--"):
                    break
                with suppress(ValueError):
                    described = json.loads(given)
                    yield described["name"], described["path"]
                    continue
                name, _, path = given.partition("=")
                yield name, path


def tokenizer(*_: Any, **__: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOKENIZER)


def _no(*_: Any, **__: Any) -> bool:
    return False


class Platform(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        return _no


HUB = SimpleNamespace(snapshot_download=lambda **_: ADAPTER)
GIVEN: dict[str, dict[str, Any]] = {
    "tests.utils": {"RemoteOpenAIServer": Server, "ROCM_EXTRA_ARGS": []},
    "tests.conftest": {},
    "vllm.platforms": {"current_platform": Platform()},
    "vllm.tokenizers": {"get_tokenizer": tokenizer},
    "vllm.transformers_utils.repo_utils": {"hf_api": lambda: HUB},
}


class StandIn(ModuleType):
    """A module of vLLM."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return part(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds them."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] != "vllm" and name not in GIVEN:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(GIVEN.get(module.__name__, {}))


sys.meta_path.insert(0, Finder())


@pytest.fixture(scope="session")
def qwen3_lora_files() -> str:
    """An adapter of the model that is served."""
    return ADAPTER


def pytest_collectreport(report: Any) -> None:
    """A file that is not to be read, or needs vLLM throughout."""
    if report.outcome != "passed":
        _write(report.nodeid, report.outcome, report.longrepr)


def pytest_runtest_logreport(report: Any) -> None:
    """One result a test."""
    if report.when == "call" or report.outcome != "passed":
        _write(report.nodeid, report.outcome, report.longrepr)


def _write(name: str, outcome: str, why: Any) -> None:
    crash = getattr(why, "reprcrash", None)
    text = why[2] if isinstance(why, tuple) else getattr(crash, "message", str(why or ""))
    with RESULTS.open("a") as file:
        file.write(json.dumps({"test": name, "outcome": outcome, "why": text[:500]}) + "\n")
