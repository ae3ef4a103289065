"""An agent of LlamaIndex: its next turn is announced while its tool runs."""

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from parts import API_KEY, BASE_URL, CHOICE, MAX_TOKENS, MODEL, QUESTION, WORKFLOW, show, weather

from symphony_client import SymphonyClient, Workflow
from symphony_client.integrations.llama_index import announced


async def ask(workflow: Workflow) -> str:
    """The guide's answer."""
    CHOICE.update(workflow.agent("guide").identity)
    model = OpenAILike(
        model=MODEL, api_base=BASE_URL, api_key=API_KEY, is_chat_model=True,
        is_function_calling_model=True, max_tokens=MAX_TOKENS, temperature=0.0,
        additional_kwargs={"extra_body": CHOICE},
    )  # fmt: skip
    guide = FunctionAgent(name="guide", tools=[weather], llm=model, streaming=False)
    run = guide.run(user_msg=QUESTION)
    async for _ in announced(run, workflow, "guide"):
        pass
    return str(await run)


with SymphonyClient() as client, client.workflow(WORKFLOW, "examples", model=MODEL) as workflow:
    show(client, asyncio.run(ask(workflow)))
