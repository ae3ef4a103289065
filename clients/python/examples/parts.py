"""What the frameworks' examples share: where the deployment is, a tool, and what is shown."""

import os
import time
from secrets import token_hex
from typing import Any, Literal

from symphony_client import NotFound, Settings, SymphonyClient

MODEL = os.environ.get("MODEL", "smollm2-135m")
BASE_URL = f"{Settings.read().base_url}/v1"
API_KEY = os.environ.get("SYMPHONY_API_KEY", "none")
WORKFLOW = f"trip-{token_hex(3)}"  # a new one each time
SESSION = f"{WORKFLOW}/guide"
QUESTION = "Tell me about the weather in Oslo."
MAX_TOKENS = int(os.environ.get("MAX_TOKENS", "60"))  # of a turn
TOOL_S = 1.0

# A small model calls a tool only if it must, and then does not stop: it must until one has run. For
# frameworks that have no setting for it, as what each request says besides.
CHOICE: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}


def weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather in a city."""
    time.sleep(TOOL_S)  # it asks a service
    CHOICE["tool_choice"] = "none"
    with SymphonyClient() as client:
        try:
            state = client.advisory(SESSION).state
        except NotFound:
            state = "not there"
    print(f"tool: weather in {city}; meanwhile the hint of the agent's next turn is {state}")
    return f"The weather in {city} is cold and rainy today, with 8 degrees."


def show(client: SymphonyClient, answer: object) -> None:
    """Print the answer, and what became of the agent's turns and hints."""
    client.announcer.flush()
    session, counts = client.session(SESSION), client.announcer.counts
    print(f"answer: {str(answer).strip()}")
    print(f"session: {session.num_turns} turns, {session.num_tokens} tokens")
    print(f"hints: {counts.sent} sent, {counts.withdrawn} not needed, {counts.failed} failed")
