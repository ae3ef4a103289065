"""An agent of AG2: its next turn is announced while its tool runs."""

import asyncio

from ag2 import Agent, Middleware, tool
from ag2.config.openai import OpenAIConfig
from parts import API_KEY, BASE_URL, CHOICE, MAX_TOKENS, MODEL, QUESTION, WORKFLOW, show, weather

from symphony_client import SymphonyClient
from symphony_client.integrations.ag2 import SymphonyMiddleware

with SymphonyClient() as client, client.workflow(WORKFLOW, "examples", model=MODEL) as workflow:
    agent = workflow.agent("guide")
    CHOICE.update(agent.identity)
    config = OpenAIConfig(
        MODEL, base_url=BASE_URL, api_key=API_KEY, max_tokens=MAX_TOKENS, temperature=0.0,
        extra_body=CHOICE,
    )  # fmt: skip
    guide = Agent(
        "guide", config=config, tools=[tool(weather)],
        middleware=[Middleware(SymphonyMiddleware, agent=agent)],
    )  # fmt: skip
    said = asyncio.run(guide.ask(QUESTION))
    show(client, said.body)
