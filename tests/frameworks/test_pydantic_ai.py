"""pydantic-ai over `/v1/responses` and `/v1/chat/completions`."""

import pytest

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.frameworks.common import KEY, LONG, City, needs

pytestmark = needs("pydantic_ai")


def test_pydantic_ai(cluster: Cluster) -> None:
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{cluster.url}/v1", api_key=KEY)
    settings = {"max_tokens": 900, "temperature": 0.0}
    for kind in (models.OpenAIChatModel, models.OpenAIResponsesModel):
        model = kind(DEMO_MODEL_ID, provider=provider)
        said = ai.Agent(model, model_settings={**settings, "max_tokens": 30}).run_sync("Hello?")
        assert isinstance(said.output, str)
        for output in (City, ai.NativeOutput(City)):
            found = ai.Agent(model, output_type=output, model_settings=settings).run_sync("Where?")
            assert isinstance(found.output, City)


def test_pydantic_ai_sends_only_what_is_new(cluster: Cluster) -> None:
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{cluster.url}/v1", api_key=KEY)
    model = models.OpenAIResponsesModel(DEMO_MODEL_ID, provider=provider)
    settings = {"max_tokens": 20, "temperature": 0.0, "openai_previous_response_id": "auto"}
    agent = ai.Agent(model, model_settings=settings)
    first = agent.run_sync(LONG)
    second = agent.run_sync("Why?", message_history=first.all_messages())
    used = second.response.usage
    assert used.input_tokens > first.response.usage.total_tokens and used.cache_read_tokens > 0
