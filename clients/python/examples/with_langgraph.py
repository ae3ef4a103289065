"""A graph of LangGraph: its agent's next turn is announced while its tool runs."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from parts import API_KEY, BASE_URL, MAX_TOKENS, MODEL, QUESTION, WORKFLOW, show, weather

from symphony_client import SymphonyClient
from symphony_client.integrations.langgraph import SymphonyCallbackHandler, successors

with SymphonyClient() as client, client.workflow(WORKFLOW, "examples", model=MODEL) as workflow:
    tools = [tool(weather)]
    model = ChatOpenAI(
        model=MODEL, base_url=BASE_URL, api_key=API_KEY, max_tokens=MAX_TOKENS, temperature=0.0
    )

    def guide(state: MessagesState) -> MessagesState:
        """A small model calls a tool only if it must, and then with what the schema allows."""
        is_first = state["messages"][-1].type == "human"
        bound = model.bind_tools(
            tools,
            tool_choice="required" if is_first else "none",
            parallel_tool_calls=False,
            strict=True,
        )
        named = bound.bind(extra_body=workflow.agent("guide").identity)
        return {"messages": [named.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("guide", guide)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "guide")
    graph.add_conditional_edges("guide", tools_condition)
    graph.add_edge("tools", "guide")
    trip = graph.compile()
    handler = SymphonyCallbackHandler(workflow, ["guide"], successors(trip))
    said = trip.invoke({"messages": [("user", QUESTION)]}, {"callbacks": [handler]})
    show(client, said["messages"][-1].content)
