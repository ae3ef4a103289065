"""A software team of agents, as MetaGPT has it (SYMPHONY, Figure 8 and section 4.3), on a
deployment.

A product manager writes down what is wanted, an architect designs it, a project manager makes a
task of each file. Then, for each file at the same time, an engineer writes it and runs the tests, a
QA engineer reviews it and runs more of them, and the engineer goes over it again.

All of that is done three times over, one after the other:

- `unnamed`: each request names its session, and no more;
- `named`: each names its agent and workflow too, from which the deployment learns who follows whom;
- `announced`: besides, the agents announce what they know, by this client.

What is said means nothing to an emulated model, so prompts are filler of the length that they have.
"""

import argparse
import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median, quantiles
from typing import Any

from openai import AsyncOpenAI

from symphony_client import Agent, Announcer, AsyncHttpTransport, Settings, SymphonyClient, Workflow

MODES = ("unnamed", "named", "announced")
WORD = "lorem ipsum "  # about as many tokens as characters, to an emulated model


@dataclass(frozen=True)
class Sizes:
    """How much there is to say and to do.

    Attributes:
        num_files: with an engineer and a QA engineer for each.
        num_reviews: of each file.
        system_chars: of each agent's system prompt.
        document_chars: of what an agent gets to work on.
        reply_tokens: of each answer.
        tool_s: that tests take.
    """

    num_files: int = 3
    num_reviews: int = 2
    system_chars: int = 500
    document_chars: int = 1500
    reply_tokens: int = 60
    tool_s: float = 2.0


@dataclass
class Seen:
    """What was measured in one mode.

    Attributes:
        workflows_s: how long each took.
        first_ms: until the first token of turns that begin a conversation.
        again_ms: of those that go on with one, whose KV may have to be brought.
        cached: share of those prompts that was not computed again.
    """

    workflows_s: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    again_ms: list[float] = field(default_factory=list)
    cached: list[float] = field(default_factory=list)


class Desk:
    """An agent's conversation with its model."""

    def __init__(self, team: "Team", agent: Agent) -> None:
        self.agent = agent
        self._team = team
        self._messages = [
            {"role": "system", "content": filler(agent.name, team.sizes.system_chars)}
        ]

    async def ask(self, text: str) -> str:
        """One turn; its answer."""
        team, is_first = self._team, len(self._messages) == 1
        self._messages.append({"role": "user", "content": text})
        names = self.agent.extra_body
        if team.mode == "unnamed":
            names = {"session_id": names["session_id"]}
        said: list[str] = []
        began_s, first_ms, usage = time.monotonic(), 0.0, None
        stream = await team.openai.chat.completions.create(
            model=team.model, messages=self._messages, max_tokens=team.sizes.reply_tokens,
            stream=True, stream_options={"include_usage": True},
            extra_body={**names, "ignore_eos": True, **team.fields},
        )  # type: ignore[call-overload]  # fmt: skip
        async for chunk in stream:
            if chunk.choices and not said:
                first_ms = (time.monotonic() - began_s) * 1e3
            said += [choice.delta.content or "" for choice in chunk.choices]
            usage = chunk.usage or usage
        self._messages.append({"role": "assistant", "content": "".join(said)})
        team.note(self.agent.name, is_first, first_ms, usage)
        return "".join(said)

    async def test(self, text: str) -> str:
        """Run the tests, and tell the model how they went."""
        return await self.use("pytest", text)

    async def use(self, tool: str, text: str) -> str:
        """Run a tool, and tell the model what it said."""
        with self.agent.tool(tool):
            await asyncio.sleep(self._team.sizes.tool_s)
        return await self.ask(text)


class Team:
    """One workflow of it.

    Args:
        openai: asks the model.
        workflow: what its agents are in.
        fields: more of each request.
    """

    def __init__(
        self,
        openai: AsyncOpenAI,
        workflow: Workflow,
        *,
        mode: str,
        model: str,
        sizes: Sizes,
        seen: Seen,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.openai = openai
        self.fields = fields or {}
        self.mode = mode
        self.model = model
        self.sizes = sizes
        self.workflow = workflow
        self._seen = seen

    def note(self, name: str, is_first: bool, first_ms: float, usage: Any) -> None:
        """A turn of this agent was answered."""
        (self._seen.first_ms if is_first else self._seen.again_ms).append(first_ms)
        if not is_first and usage is not None and usage.prompt_tokens_details is not None:
            cached = usage.prompt_tokens_details.cached_tokens or 0
            self._seen.cached.append(cached / max(usage.prompt_tokens, 1))

    async def run(self) -> None:
        """From what is wanted to files that pass."""
        began_s = time.monotonic()
        with self.workflow:
            wanted = await self._write("product_manager", "architect", "Write down what is wanted.")
            design = await self._write("architect", "project_manager", wanted)
            tasks = await self._write("project_manager", None, design)
            await asyncio.gather(*(self._file(n, tasks) for n in range(self.sizes.num_files)))
        self._seen.workflows_s.append(time.monotonic() - began_s)

    async def _write(self, role: str, following: str | None, given: str) -> str:
        with self.workflow.agent(role, next=following) as agent:
            desk = Desk(self, agent)
            draft = await desk.ask(self._document(given))
            return await desk.ask(f"Go over it once more: {draft}")

    async def _file(self, number: int, tasks: str) -> None:
        """An engineer and a QA engineer hand a file to each other. Each keeps its conversation."""
        writer = Desk(self, self.workflow.agent("engineer", self._session("engineer", number)))
        reviewer = Desk(self, self.workflow.agent("qa", self._session("qa", number)))
        with writer.agent:
            await writer.ask(self._document(f"Write file {number}: {tasks}"))
            code = await writer.test("All tests pass but one. Mend it.")
            writer.agent.hands_off_to("qa", 0.0, session_id=reviewer.agent.session_id)
        for _ in range(self.sizes.num_reviews):
            with reviewer.agent:
                await reviewer.ask(self._document(f"Review: {code}"))
                # The graph says who is next while the tests run.
                reviewer.agent.hands_off_to(
                    "engineer", self.sizes.tool_s, session_id=writer.agent.session_id
                )
                review = await reviewer.test("Tests that you wrote fail. Say why.")
            with writer.agent:
                code = await writer.ask(f"Change this: {review}")
                writer.agent.hands_off_to(
                    "qa", self.sizes.tool_s, session_id=reviewer.agent.session_id
                )
                code = await writer.test("They pass. Clean up.")

    def _session(self, role: str, number: int) -> str:
        return f"{self.workflow.session_of(role)}/{number}"

    def _document(self, about: str) -> str:
        return filler(about, self.sizes.document_chars)


def filler(begin: str, num_chars: int) -> str:
    """A text of this length that begins so."""
    return (begin + " " + WORD * (num_chars // len(WORD) + 1))[:num_chars]


async def measure(
    url: str | None, model: str | None, num_teams: int, num_rounds: int, sizes: Sizes
) -> dict[str, Seen]:
    """Let so many teams work at once, in each mode, so many times."""
    seen = {mode: Seen() for mode in MODES}
    settings = Settings.read(url)
    run = secrets.token_hex(4)  # no other run's sessions
    silent = Announcer(AsyncHttpTransport(settings))
    silent.close()  # it announces nothing
    async with AsyncOpenAI(
        base_url=f"{settings.base_url}/v1", api_key=settings.api_key or "none", max_retries=0
    ) as openai:
        model = model or (await openai.models.list()).data[0].id
        for number in range(num_rounds):
            turn = number % len(MODES)  # none is always the first, when nothing is warm
            for mode in MODES[turn:] + MODES[:turn]:
                announcer = None if mode == "announced" else silent
                with SymphonyClient(url, announcer=announcer) as client:
                    workflows = [
                        client.workflow(
                            f"{run}/{mode}/{number}/{team}", f"team-{mode}", model=model
                        )
                        for team in range(num_teams)
                    ]
                    same: dict[str, Any] = {
                        "mode": mode,
                        "model": model,
                        "sizes": sizes,
                        "seen": seen[mode],
                    }
                    teams = [Team(openai, workflow, **same) for workflow in workflows]
                    await asyncio.gather(*(team.run() for team in teams))
    return seen


def table(seen: dict[str, Seen]) -> str:
    """What was measured, side by side; times to first tokens are of turns that go on."""
    rows = ["            a workflow   first token: median    mean     p95   not computed again"]
    for mode, one in seen.items():
        middle, mean, late = median(one.again_ms), fmean(one.again_ms), p95(one.again_ms)
        rows.append(
            f"{mode:10} {fmean(one.workflows_s):9.1f} s {middle:20.0f} ms {mean:4.0f} ms"
            f" {late:4.0f} ms {fmean(one.cached):19.0%}"
        )
    return "\n".join(rows)


def p95(values: list[float]) -> float:
    """Of two values at least."""
    return quantiles(values, n=20)[-1]


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description="A software team of agents, with hints and without."
    )
    parser.add_argument("--url", help="of the deployment (SYMPHONY_BASE_URL, else this machine's)")
    parser.add_argument("--model", help="the first that is served")
    parser.add_argument("--teams", type=int, default=4, help="workflows at once (4)")
    parser.add_argument("--rounds", type=int, default=3, help="of each mode (3)")
    parser.add_argument("--files", type=int, default=3, help="of each workflow (3)")
    parser.add_argument("--document-chars", type=int, default=1500, help="of what is read (1500)")
    parser.add_argument("--tool-s", type=float, default=2.0, help="that tests take (2)")
    given = parser.parse_args()
    sizes = Sizes(num_files=given.files, document_chars=given.document_chars, tool_s=given.tool_s)
    print(table(asyncio.run(measure(given.url, given.model, given.teams, given.rounds, sizes))))


if __name__ == "__main__":
    main()
