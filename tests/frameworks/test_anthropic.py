"""Anthropic's own client of `/v1/messages`."""

from typing import Any

import pytest

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.frameworks.common import KEY, City, Weather, needs

pytestmark = needs("anthropic")


def test_anthropic(cluster: Cluster) -> None:
    anthropic = pytest.importorskip("anthropic")
    asked: dict[str, Any] = {"model": DEMO_MODEL_ID, "max_tokens": 900}
    asked["extra_body"] = {"temperature": 0.0}
    question = {"role": "user", "content": "Where to?"}
    visit = {"name": "go", "description": "Go there.", "input_schema": City.model_json_schema()}
    with anthropic.Anthropic(base_url=cluster.url, api_key=KEY, max_retries=0) as client:
        create = client.messages.create
        said = create(**asked | {"max_tokens": 20}, system="Be kind.", messages=[question])
        assert said.content[0].text and said.stop_reason in ("end_turn", "max_tokens")
        count = client.messages.count_tokens
        counted = count(model=DEMO_MODEL_ID, system="Be kind.", messages=[question])
        usage = said.usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens

        tooled = asked | {"tools": [visit], "tool_choice": {"type": "any"}}
        called = create(**tooled, messages=[question])
        assert called.stop_reason == "tool_use"
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": City(**block.input).name}
            for block in called.content
        ]
        messages = [question, {"role": "assistant", "content": called.content}]
        messages.append({"role": "user", "content": results})
        with client.messages.stream(**tooled, messages=messages) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        assert "input_json" in kinds and kinds[-1] == "message_stop"
        assert all(City(**block.input) for block in final.content)
        assert final.stop_reason == "tool_use" and final.usage.output_tokens

        form = {"format": {"type": "json_schema", "schema": City.model_json_schema()}}
        placed = create(**asked, messages=[question], output_config=form)
        assert City.model_validate_json(placed.content[0].text)
        parsed = client.messages.parse(**asked, messages=[question], output_format=Weather)
        assert isinstance(parsed.parsed_output, Weather)
        with client.messages.stream(**asked | {"max_tokens": 9}, messages=[question]) as stream:
            text = "".join(stream.text_stream)
            assert text == stream.get_final_text()
        with pytest.raises(anthropic.NotFoundError) as caught:
            create(**asked | {"model": "gpt-x"}, messages=[question])
        assert caught.value.body["error"]["type"] == "not_found_error"
        assert caught.value.request_id


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_tool_runner(cluster: Cluster, is_streamed: bool) -> None:
    anthropic = pytest.importorskip("anthropic")
    asked: list[str] = []

    @anthropic.beta_tool(input_schema=City.model_json_schema())  # type: ignore[untyped-decorator]
    def go(name: str, size: int) -> str:
        """Go there."""
        asked.append(f"{name}{size}")
        return "it rains"

    with anthropic.Anthropic(base_url=cluster.url, api_key=KEY, max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model=DEMO_MODEL_ID, max_tokens=900, max_iterations=2, stream=is_streamed,
            tools=[go], tool_choice={"type": "any", "disable_parallel_tool_use": True},
            messages=[{"role": "user", "content": "Where to?"}], extra_body={"temperature": 0.0},
        )  # fmt: skip
        said = [turn.get_final_message() if is_streamed else turn for turn in runner]
    assert [one.stop_reason for one in said] == ["tool_use"] * 2
    assert [one.content[-1].type for one in said] == ["tool_use"] * 2
    assert 1 <= len(asked) <= 2, "the last turn's tools need not run"
    assert said[1].usage.input_tokens + said[1].usage.cache_read_input_tokens > 0
