"""Against a real cluster, emulated: what is announced is placed, used, taken back."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import software_team
from openai import OpenAI

from cli.base.children import ROOT, free_port
from loadtest.deployment import wait_until
from symphony_client import (
    Announcer,
    AsyncSymphonyClient,
    NatsTransport,
    NotFound,
    SymphonyClient,
    Unreachable,
    Unsupported,
)
from tests.cluster import Cluster

MODEL = "zero"
ODD_NAMES = ("a/b c", "é%41?#&+", "..", ".", "order-17/engineer", "%2F")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("client") / "data", "--emulate", MODEL) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[SymphonyClient]:
    with SymphonyClient(cluster.url) as made:
        yield made


def ask(openai: OpenAI, text: str, names: dict[str, str]) -> None:
    openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=4, extra_body=names
    )


def test_an_advisory_from_its_beginning_to_its_end(
    cluster: Cluster, client: SymphonyClient
) -> None:
    session_id = "life/1"
    with pytest.raises(NotFound) as caught:
        client.advisory(session_id)
    assert caught.value.code == "advisory_not_found"
    state = client.advise(session_id, model=MODEL, expected_arrival=1.5, agent="a", workflow_id="w")
    assert state.is_live and (state.agent, state.workflow_id) == ("a", "w")
    with cluster.client() as openai:
        ask(openai, "Hello", {"session_id": session_id})
    wait_until(lambda: not client.advisory(session_id).is_live, "the turn was noticed", 60)
    assert client.advisory(session_id).state in ("used", "late")
    assert client.session(session_id).num_turns == 1
    client.advise(session_id)
    assert client.invalidate(session_id).state == "invalidated"
    assert client.forget(session_id).deleted
    with pytest.raises(NotFound):
        client.session(session_id)


@pytest.mark.parametrize("session_id", ODD_NAMES)
def test_a_session_may_be_called_anything(client: SymphonyClient, session_id: str) -> None:
    assert client.advise(session_id, model=MODEL).session_id == session_id
    assert client.advisory(session_id).session_id == session_id
    assert client.invalidate(session_id).state == "invalidated"


def used(cluster: Cluster) -> float:
    """Hints of clients that were used lately; those of the cluster itself do not count."""
    rates = cluster.look()["hints"]["rates"]
    return float(sum(rate["hits"] * rate["num_hints"] for rate in rates))


def test_a_workflows_turns_find_their_places(cluster: Cluster, client: SymphonyClient) -> None:
    before = used(cluster)
    with (
        cluster.client() as openai,
        client.workflow("order-17", "shop", model=MODEL) as workflow,
    ):
        with workflow.agent("engineer", next="qa") as engineer:
            ask(openai, "Write it.", engineer.extra_body)
            with engineer.tool("pytest"):
                assert client.announcer.flush(30.0)
                state = client.advisory("order-17/engineer")
                assert state.is_live and state.agent == "shop/engineer"
                wait_until(lambda: client.advisory("order-17/qa").state == "placed", "placed", 60)
            ask(openai, "Write it. It fails.", engineer.extra_body)
        with workflow.agent("qa") as qa:
            ask(openai, "Test it.", qa.extra_body)
        wait_until(lambda: used(cluster) > before + 1.5, "both came true", 60)


def snippets(path: Path) -> list[str]:
    """Those of a page that use the client."""
    found = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return [code for code in found if "symphony_client" in code]


@pytest.mark.parametrize(
    ("path", "num"), [(ROOT / "clients/python/README.md", 2), (ROOT / "docs/agents.md", 1)]
)
def test_the_docs_snippets_run(cluster: Cluster, path: Path, num: int) -> None:
    ours = [
        code for code in snippets(path) if "import SymphonyClient" in code or "NotFound" in code
    ]
    assert len(ours) == num
    for code in ours:
        here = code.replace("http://127.0.0.1:8080", cluster.url)
        here = here.replace('"MODEL"', f'"{MODEL}"').replace('"smollm2-135m"', f'"{MODEL}"')
        exec(compile(here, path.name, "exec"), {})


def test_the_software_team_works_with_hints_and_without(cluster: Cluster) -> None:
    sizes = software_team.Sizes(
        num_files=2, num_reviews=1, document_chars=300, reply_tokens=4, tool_s=0.1
    )
    before = used(cluster)
    seen = asyncio.run(software_team.measure(cluster.url, None, 2, 1, sizes))
    shown = software_team.table(seen).splitlines()
    assert [line.split()[0] for line in shown[1:]] == ["unnamed", "named", "announced"]
    for one in seen.values():
        assert len(one.workflows_s) == 2 and min(one.workflows_s) > 0.3
        # A team has three who write, and an engineer and a QA engineer for each file.
        assert len(one.first_ms) == 2 * (3 + 2 * 2)
        assert len(one.again_ms) == len(one.cached) == 2 * (3 + 2 * 4)
        assert min(one.first_ms + one.again_ms) > 0
    wait_until(lambda: used(cluster) > before + 5, "announced turns came", 60)


def test_over_nats(cluster: Cluster) -> None:
    url, nkey_file = cluster.run.nats_url, cluster.nkey()

    async def scenario() -> None:
        async with AsyncSymphonyClient(transport=NatsTransport(url, nkey_file)) as client:
            state = await client.advise("bus", model=MODEL, expected_arrival=3.0)
            assert state.is_live
            assert (await client.advisory("bus")).session_id == "bus"
            with client.workflow("w", model=MODEL) as workflow:
                workflow.expect("engineer")
                assert await asyncio.to_thread(client.announcer.flush, 30.0)
            assert (await client.advisory("w/engineer")).agent == "engineer"
            assert (await client.invalidate("bus")).state == "invalidated"
            with pytest.raises(NotFound) as caught:
                await client.advisory("nobody")
            assert caught.value.code == "advisory_not_found"
            with pytest.raises(Unsupported):
                await client.session("bus")

    asyncio.run(scenario())


def test_nats_that_is_away() -> None:
    transport = NatsTransport(f"nats://127.0.0.1:{free_port()}", timeout_s=0.2)

    async def scenario() -> None:
        async with AsyncSymphonyClient(transport=transport) as client:
            with pytest.raises(Unreachable):
                await client.advise("s")
        with pytest.raises(Unreachable):
            await client.advise("s")

    asyncio.run(scenario())
    with Announcer(transport.for_hints(), timeout_s=0.2) as announcer:
        began_s = time.monotonic()
        announcer.take_back("s")
        wait_until(lambda: announcer.counts.failed == 1, "it is noticed", 60)
        assert announcer.is_away
    assert time.monotonic() - began_s < 20
