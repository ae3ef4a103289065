"""An agent of openai-agents: its next turn is announced while its tool runs."""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from parts import API_KEY, BASE_URL, CHOICE, MAX_TOKENS, MODEL, QUESTION, WORKFLOW, show, weather

from symphony_client import SymphonyClient
from symphony_client.integrations.openai_agents import SymphonyRunHooks, model_settings

set_tracing_disabled(True)

with SymphonyClient() as client, client.workflow(WORKFLOW, "examples", model=MODEL) as workflow:
    settings = ModelSettings(
        tool_choice="required", parallel_tool_calls=False, max_tokens=MAX_TOKENS, temperature=0.0
    )
    guide = Agent(
        name="guide",
        model=OpenAIChatCompletionsModel(
            model=MODEL, openai_client=AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY)
        ),
        tools=[function_tool(weather, is_enabled=lambda *_: CHOICE["tool_choice"] == "required")],
        model_settings=model_settings(workflow, "guide", settings),
    )
    done = asyncio.run(Runner.run(guide, QUESTION, hooks=SymphonyRunHooks(workflow)))
    show(client, done.final_output)
