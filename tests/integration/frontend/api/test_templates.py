"""Templates that loop, or take or write too much: each ends by itself and ends nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.frontend.core.process_pool import PoolLimits
from services.frontend.rendering import texts as subject
from services.frontend.rendering.pool import Pool
from services.frontend.rendering.texts import Texts
from services.frontend.rendering.tokenizer import ModelTokenizer, load_tokenizer
from services.worker.models.demo_model import make_demo_model
from shared.errors import InvalidRequest
from shared.runtime.clock import SystemClock

BILLION = "1000000000"
SLOW = "runs longer than"
LARGE = "takes too much memory"
KINDS: dict[str, tuple[str, str]] = {
    "loops": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", SLOW),
    "a range": (f"{{% for a in range({BILLION}) %}}{{% endfor %}}", "too big"),
    "a text's letters": (
        "{% set c = 'a' * 99 %}{% for a in c %}{% for b in c %}{% for d in c %}{% for e in c %}"
        "{% for f in c %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}", SLOW),
    "calls twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
        "{{ f(60) }}", SLOW),
    "calls itself": ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "recursion"),
    "recursive": (
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "recursion"),
    "words": ("{{ lipsum(n=10000000) }}", SLOW),
    "slices": (f"{{{{ messages | slice({BILLION}) | list }}}}", ""),
    "batches": (f"{{{{ messages | batch({BILLION}, 0) | list }}}}", LARGE),
    "a repeated text": (f"{{{{ 'a' * {BILLION} }}}}", "repeats something"),
    "a repeated list": (f"{{{{ [0] * {BILLION} }}}}", "repeats something"),
    "repeated by the front": (f"{{{{ {BILLION} * messages[0].content }}}}", "repeats something"),
    "a power": ("{{ 10 ** 1000000000 }}", "bits"),
    "products": (
        "{% set ns = namespace(x=3) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}"
        "{% endfor %}", "bits"),
    "a width": (f"{{{{ '%{BILLION}d' % 1 }}}}", LARGE),
    "a format": (f"{{{{ '{{:>{BILLION}}}'.format('a') }}}}", ""),
    "a filter's width": (f"{{{{ 'a' | center({BILLION}) }}}}", LARGE),
    "a method's width": (f"{{{{ 'a'.ljust({BILLION}) }}}}", LARGE),
    "an indent": (f"{{{{ 'a\\na' | indent({BILLION}) }}}}", LARGE),
    "an indent of json": (f"{{{{ messages | tojson(indent={BILLION}) }}}}", LARGE),
    "doubled": (
        "{% set ns = namespace(x='abcd') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}{{ ns.x }}", ""),
    "replaced": (
        "{% set ns = namespace(x='aa') %}{% for a in range(60) %}"
        "{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}{{ ns.x }}", ""),
    "a cycle": (
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | tojson }}", "not JSON serializable"),
    "much output": (
        "{% for a in range(99999) %}{{ 'a' * 100000 }}{% endfor %}", "writes more than"),
    "much in a block": (
        "{% set x %}{% for a in range(99999) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}",
        ""),
    "no text": (r"{{ '\ud800' }}", "no text"),
    "an escape": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "a change": ("{{ messages.append(1) }}", "unsafe"),
    "a long complaint": ("{{ raise_exception('a' * 1000000) }}", "aaa"),
}  # fmt: skip

NO_TEMPLATES = ("{% if %}", "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}")


def model(folder: Path, template: str) -> ModelTokenizer:
    """The demo model with this template."""
    if not folder.exists():
        make_demo_model(folder)
        config = json.loads((folder / "tokenizer_config.json").read_bytes())
        config.pop("chat_template", None)
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)
    return load_tokenizer(str(folder))


@asynccontextmanager
async def rendering() -> AsyncIterator[tuple[Texts, Pool]]:
    """One process for templates."""
    pool = Pool(SystemClock(), PoolLimits(num_children=1, work_ns=60_000_000_000))
    try:
        yield Texts(pool, pool), pool
    finally:
        await pool.close()


def said(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


async def failure(texts: Texts, tokenizer: ModelTokenizer, content: str = "hello") -> str:
    with pytest.raises(InvalidRequest) as error:
        await texts.render(tokenizer, said(content), {})
    assert len(error.value.message) < 1200
    return error.value.message


def test_each_ends_by_itself_and_its_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "TEMPLATE_CPU_S", 0.2)
    cases = [
        f"{{% if messages[0].content == {name!r} %}}{template}{{% endif %}}"
        for name, (template, _) in KINDS.items()
    ]

    async def scenario() -> None:
        tokenizer = model(tmp_path / "demo", "".join([*cases, "{{ messages[0].content }}"]))
        async with rendering() as (texts, pool):
            assert "ns" in await texts.template_names(tokenizer)
            assert await texts.render(tokenizer, said("hello"), {}) == "hello"
            (pid,) = pool.pids
            for name, (_, why) in KINDS.items():
                message = await failure(texts, tokenizer, name)
                assert "chat template" in message and why in message, (name, message)
                assert await texts.render(tokenizer, said("hello"), {}) == "hello", name
            for template in NO_TEMPLATES:
                broken = model(tmp_path / "demo", template)
                assert await texts.template_names(broken) == frozenset()
                assert "chat template" in await failure(texts, broken)
            monkeypatch.undo()  # what is long takes its time, and more where the machine is busy
            wordy = model(tmp_path / "demo", "{% for m in messages %}{{ m | tojson }}{% endfor %}")
            long = [message for at in range(2500) for message in said('"' * 1000 + str(at))]
            text = await texts.render(wordy, long, {})
            assert len(text) > 5_000_000, "as much as a request that is as long may ask for"
            assert pool.pids == [pid]

    asyncio.run(scenario())


def test_a_template_is_neither_compiled_nor_run_where_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.frontend.rendering.tokenizer._names_in", pytest.fail)
    hostile = model(tmp_path / "hostile", "{{ 10 ** 1000000000 }}")
    assert hostile.has_template
