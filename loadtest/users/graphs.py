"""A team of agents that writes a program, as MetaGPT's does: who calls whom, as scripts.

A planner asks an architect; of each file an engineer writes a draft and runs the tests, a tool that
takes its time, after which the engineer goes on; a reviewer reads every file and may send them all
back; then the planner sums up. What one says the next gets, so prompts grow. Clients announce
nothing: each request says which agent works on what, and the deployment learns who follows whom.
"""

from collections.abc import Sequence
from random import Random

from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn

SYSTEM_TOKENS = 256
TASK_TOKENS = (60, 400)
QUOTE_TOKENS = (150, 500)  # of another's work that a prompt brings along
TOOL_TOKENS = (40, 300)
OUTPUTS = {"planner": (60, 200), "architect": (150, 400), "engineer": (100, 350),
           "tester": (30, 120), "reviewer": (60, 200)}  # fmt: skip
TOOL_S = (4.0, 0.8)  # median and spread of a run of the tests
SENT_BACK = 0.4
ROUNDS_MAX = 3
FILES = (2, 5)
PAUSE_S = 2.0
APPLICATION = "team"


def team(name: str, rng: Random) -> Script:
    """One program, from the task to the summary."""
    build = _Build(name, rng)
    build.call("planner", 0, (), rng.randint(*TASK_TOKENS))
    build.call("architect", 0, build.last(1), rng.randint(*QUOTE_TOKENS))
    num_files = rng.randint(*FILES)
    for number in range(ROUNDS_MAX):
        before = build.last(1 if not number else num_files)
        drafts = [
            build.call("engineer", file, before, rng.randint(*QUOTE_TOKENS))
            for file in range(num_files)
        ]
        tested = [build.tool_ran("engineer", file, each) for file, each in enumerate(drafts)]
        for file in range(num_files):
            build.call("reviewer", file, tested, rng.randint(*QUOTE_TOKENS))
        if rng.random() >= SENT_BACK:
            break
    build.call("planner", 0, build.last(num_files), rng.randint(*QUOTE_TOKENS))
    return Script(name=name, turns=tuple(build.turns))


class _Build:
    def __init__(self, name: str, rng: Random) -> None:
        self.turns: list[ScriptedTurn] = []
        self._name = name
        self._rng = rng
        self._known: set[str] = set()

    def last(self, num: int) -> tuple[int, ...]:
        """The last so many turns."""
        return tuple(range(len(self.turns) - num, len(self.turns)))

    def call(self, role: str, file: int, after: Sequence[int], num_new: int) -> int:
        """One turn of an agent; returns its number."""
        session = f"{role}/{file}"
        system = () if session in self._known else (Part(f"system/{role}", SYSTEM_TOKENS),)
        self._known.add(session)
        new = Part(f"{self._name}/{len(self.turns)}", num_new)
        return self._add(role, session, (*system, new), after, PAUSE_S if after else 0.0, None)

    def tool_ran(self, role: str, file: int, after: int) -> int:
        """The agent comes back with what its tool printed, which is sure when that is started."""
        wait_s = TOOL_S[0] * self._rng.lognormvariate(0.0, TOOL_S[1])
        printed = Part(f"{self._name}/{len(self.turns)}", self._rng.randint(*TOOL_TOKENS))
        hint = Hint(lead_ns=round(wait_s * 1e9), expected_in_ns=round(TOOL_S[0] * 1e9))
        return self._add(role, f"{role}/{file}", (printed,), (after,), wait_s, hint)

    def _add(
        self,
        role: str,
        session: str,
        parts: tuple[Part, ...],
        after: Sequence[int],
        wait_s: float,
        hint: Hint | None,
    ) -> int:
        self.turns.append(
            ScriptedTurn(
                session=session,
                parts=parts,
                num_output=self._rng.randint(*OUTPUTS[role]),
                after=tuple(after),
                wait_ns=round(wait_s * 1e9),
                hint=hint,
                agent=f"{APPLICATION}/{role}",
            )
        )
        return len(self.turns) - 1
