"""`mooncake`: Kimi's chats, as arrivals, lengths and blocks of 512 tokens; an equal id is an equal
whole prefix.

A request that goes on where another one's prompt ended is that one's session's next turn; of
several such, the latest. Sessions come at their time, whatever the cluster does; within one, a turn
comes when the answer before it has been there for as long as it was in the trace, if answers came
at `ANSWER_MS_A_TOKEN`. When people begin to type is not in the trace: their messages are taken to
be as long as those of `sharegpt-like`, and the rest to be pasted.
"""

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

from loadtest.workloads.chats import load as load_dialogues
from loadtest.workloads.people import draw_person
from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn
from loadtest.workloads.traces import records_of

FILE = "mooncake/conversation_trace.jsonl.gz"
OLDER_FILE = "mooncake/arxiv_trace_first1000.jsonl.gz"  # of the arXiv report; the same fields
BLOCK_TOKENS = 512
WHOLE_USERS = 1024  # who stand for all of the trace; fewer for a share of its sessions
ANSWER_MS_A_TOKEN = 20.0  # the paper's TPOT at load
CUT_TOKENS = 256  # a prompt that is so much shorter than its history is no continuation of it


class Request(NamedTuple):
    """Times in nanoseconds from the beginning of the trace, lengths in tokens."""

    at_ns: int
    num_prompt: int
    num_output: int
    blocks: tuple[int, ...]


@dataclass(slots=True)
class Chain:
    """Requests of one session, each with the tokens that it has beside its history."""

    requests: list[Request]
    num_new: list[int]
    num_tokens: int

    def add(self, request: Request) -> bool:
        """Whether it goes on here; if so, it does."""
        num_new = request.num_prompt - self.num_tokens
        if num_new < -CUT_TOKENS:
            return False
        self.requests.append(request)
        self.num_new.append(max(num_new, 1))
        self.num_tokens += self.num_new[-1] + request.num_output
        return True


@cache
def load_requests(file: str = FILE) -> tuple[Request, ...]:
    """All of a trace, by time."""
    return tuple(
        Request(
            row["timestamp"] * 1_000_000,
            row["input_length"],
            max(row["output_length"], 1),
            tuple(row["hash_ids"]),
        )
        for row in records_of(file)
    )


@cache
def load_chains(file: str = FILE) -> tuple[Chain, ...]:
    """Its sessions, by their beginning."""
    chains: list[Chain] = []
    latest: dict[int, Chain] = {}  # by the last whole block that its latest prompt has
    for request in load_requests(file):
        found = next((latest[each] for each in reversed(request.blocks) if each in latest), None)
        if found is None or not found.add(request):
            num_tokens = request.num_prompt + request.num_output
            found = Chain([request], [request.num_prompt], num_tokens)
            chains.append(found)
        # Its very last block is partial: what follows has another one in its place.
        if len(request.blocks) > 2:
            latest[request.blocks[-2]] = found
    return tuple(chains)


def mooncake(num_users: int, duration_ns: int, seed: int, file: str = FILE) -> list[Script]:
    """Sessions that begin in the first `duration_ns` of the trace, a share of them by `num_users`;
    the share of fewer users is part of that of more."""
    share = min(num_users / WHOLE_USERS, 1.0)
    scripts = []
    for number, chain in enumerate(load_chains(file)):
        if chain.requests[0].at_ns >= duration_ns:
            break
        rng = Random(f"{seed}/mooncake/{number}")
        if rng.random() < share:
            scripts.append(_script(f"session{number}", chain, duration_ns, rng))
    return scripts


def _script(name: str, chain: Chain, duration_ns: int, rng: Random) -> Script:
    dialogues, person = load_dialogues(), draw_person(rng)
    turns: list[ScriptedTurn] = []
    before: Request | None = None
    begins_ns = 0
    for request, num_new in zip(chain.requests, chain.num_new, strict=True):
        if request.at_ns >= duration_ns:
            break
        lead_ns = person.typing_ns(dialogues.draw(rng)[0])
        if before is None:
            begins_ns = max(request.at_ns - lead_ns, 0)
            wait_ns = request.at_ns - begins_ns
        else:
            answer_ns = round(before.num_output * ANSWER_MS_A_TOKEN * 1e6)
            wait_ns = max(request.at_ns - before.at_ns - answer_ns, 0)
        parts = _blocks(request) if before is None else (Part(f"{name}/{len(turns)}", num_new),)
        turns.append(
            ScriptedTurn(
                session=name,
                parts=parts,
                num_output=request.num_output,
                after=(len(turns) - 1,) if turns else (),
                wait_ns=wait_ns,
                hint=Hint(lead_ns=lead_ns),
            )
        )
        before = request
    return Script(name=name, turns=tuple(turns), begins_ns=begins_ns)


def _blocks(request: Request) -> tuple[Part, ...]:
    """The prompt; the last block is what is left of it."""
    last = len(request.blocks) - 1
    rest = request.num_prompt - last * BLOCK_TOKENS
    return tuple(
        Part(f"block{each}", BLOCK_TOKENS if place < last else rest)
        for place, each in enumerate(request.blocks)
    )
