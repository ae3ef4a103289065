"""An agent of pydantic-ai: its next turn is announced while its tool runs."""

from parts import API_KEY, BASE_URL, MAX_TOKENS, MODEL, QUESTION, WORKFLOW, show, weather
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from symphony_client import SymphonyClient
from symphony_client.integrations.pydantic_ai import SymphonyCapability


def settings(run: RunContext[None]) -> ModelSettings:
    """A small model calls a tool only if it must."""
    return ModelSettings(
        max_tokens=MAX_TOKENS, temperature=0.0, parallel_tool_calls=False,
        tool_choice="required" if run.run_step == 1 else "none",
    )  # fmt: skip


with SymphonyClient() as client, client.workflow(WORKFLOW, "examples", model=MODEL) as workflow:
    provider = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)
    guide = Agent(
        OpenAIChatModel(MODEL, provider=provider),
        name="guide",
        tools=[weather],
        model_settings=settings,
    )
    said = guide.run_sync(QUESTION, capabilities=[SymphonyCapability(workflow)])
    show(client, said.output)
