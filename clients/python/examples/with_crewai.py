"""A crew of CrewAI with one agent: its next turn is announced while its tool runs."""

import os

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")

from crewai import LLM, Agent, Crew, Task
from crewai.events import crewai_event_bus
from crewai.tools import tool
from parts import API_KEY, BASE_URL, CHOICE, MAX_TOKENS, MODEL, QUESTION, WORKFLOW, show, weather

from symphony_client import SymphonyClient
from symphony_client.integrations.crewai import SymphonyListener

with SymphonyClient() as client, client.workflow(WORKFLOW, "examples", model=MODEL) as workflow:
    CHOICE.update(workflow.agent("guide").identity)
    guide = Agent(
        role="guide",
        goal="Help travellers",
        backstory="You know the weather.",
        tools=[tool("weather")(weather)],
        llm=LLM(
            model=f"openai/{MODEL}", base_url=BASE_URL, api_key=API_KEY, max_tokens=MAX_TOKENS,
            temperature=0.0, extra_body=CHOICE,
        ),
    )  # fmt: skip
    task = Task(description=QUESTION, expected_output="one sentence", agent=guide)
    with crewai_event_bus.scoped_handlers():
        SymphonyListener(workflow, ["guide"])
        said = Crew(agents=[guide], tasks=[task]).kickoff()
    show(client, said.raw)
