"""An agent of AutoGen's core: its next turn is announced while its tool runs."""

import asyncio
from dataclasses import dataclass

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime
from autogen_core import message_handler as handles
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResultMessage,
    ModelInfo,
    UserMessage,
)
from autogen_core.tool_agent import ToolAgent
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from parts import API_KEY, BASE_URL, MAX_TOKENS, MODEL, QUESTION, WORKFLOW, show, weather

from symphony_client import Agent, SymphonyClient, Workflow
from symphony_client.integrations.autogen import SymphonyInterventionHandler

INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, structured_output=True, family="unknown"
)


@dataclass
class Text:
    """A question or an answer."""

    text: str


class Guide(RoutedAgent):
    """Asks the model, runs the tool that it calls, and asks again."""

    def __init__(
        self, model: OpenAIChatCompletionClient, tools: list[FunctionTool], agent: Agent
    ) -> None:
        super().__init__("guide")
        self._model = model
        self._tools = tools
        self._agent = agent

    @handles
    async def answer(self, message: Text, ctx: MessageContext) -> Text:
        """A small model calls a tool only if it must."""
        asked = UserMessage(content=message.text, source="user")
        called = await self._model.create(
            [asked], tools=self._tools, tool_choice="required",
            extra_create_args={"extra_body": self._agent.extra_body},
        )  # fmt: skip
        calls = called.content
        results = [await self.send_message(call, AgentId("tools", WORKFLOW)) for call in calls]
        said = await self._model.create(
            [
                asked,
                AssistantMessage(content=calls, source="guide"),
                FunctionExecutionResultMessage(content=results),
            ],
            tools=self._tools, tool_choice="none",
            extra_create_args={"extra_body": self._agent.extra_body},
        )  # fmt: skip
        return Text(str(said.content))


async def ask(workflow: Workflow) -> str:
    """The guide's answer."""
    tools = [FunctionTool(weather, "The weather in a city.")]
    model = OpenAIChatCompletionClient(
        model=MODEL, base_url=BASE_URL, api_key=API_KEY, model_info=INFO, max_tokens=MAX_TOKENS,
        temperature=0.0, parallel_tool_calls=False,
    )  # fmt: skip
    agent = workflow.agent("guide")
    handler = SymphonyInterventionHandler(workflow, ["guide"])
    runtime = SingleThreadedAgentRuntime(intervention_handlers=[handler])
    await Guide.register(runtime, "guide", lambda: Guide(model, tools, agent))
    await ToolAgent.register(runtime, "tools", lambda: ToolAgent("tools", tools))
    runtime.start()
    said = await runtime.send_message(Text(QUESTION), AgentId("guide", WORKFLOW))
    await runtime.stop_when_idle()
    await model.close()
    return str(said.text)


with SymphonyClient() as client, client.workflow(WORKFLOW, "examples", model=MODEL) as workflow:
    show(client, asyncio.run(ask(workflow)))
