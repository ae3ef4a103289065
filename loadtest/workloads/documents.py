"""`documents`: people who talk about long documents and come back after minutes; and
`prefill-documents`: whose further turns are long prompts and whose answers are short.

A session begins with a document of 8,000 to 60,000 tokens and goes on with questions about it. The
documents are as long as the prompts of that size in Kimi's trace (its median there is 15,750
tokens), and answers as long as those prompts' answers; questions are as long as messages of written
dialogues, and a session has as many turns as BurstGPT's sessions with several. People read the
answer and think before they type; the hint is sent when they begin to type.
"""

from dataclasses import replace
from functools import cache
from itertools import count
from random import Random

from loadtest.workloads import chats, mooncake
from loadtest.workloads.people import THINKING_S, draw_person, tokens_of
from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn

TOKENS = (8_000, 60_000)
BEGIN_NS = 200_000_000_000  # in which people begin: as long as a person takes for a turn
SECOND_NS = 1_000_000_000


@cache
def _lengths() -> tuple[tuple[int, int], ...]:
    """Tokens of each document, and of the answer to what was asked about it."""
    least, most = TOKENS
    return tuple(
        (each.num_prompt, each.num_output)
        for each in mooncake.load_requests()
        if least <= each.num_prompt <= most
    )


def documents(num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """Everybody has one session after the other."""
    return [
        _one(f"reader{number}", duration_ns, Random(f"{seed}/documents/{number}"))
        for number in range(num_users)
    ]


def prefill_documents(num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """The same people at the same pace; what they send about a document has 1,024 tokens, and every
    answer one (SYMPHONY, section 4.5 and Figure 18)."""
    return [
        replace(script, turns=tuple(map(_prefill, script.turns)))
        for script in documents(num_users, duration_ns, seed)
    ]


def _prefill(turn: ScriptedTurn) -> ScriptedTurn:
    asked = replace(turn.parts[-1], num_tokens=chats.HEAVY_PROMPT)
    return replace(turn, parts=(*turn.parts[:-1], asked), num_output=chats.HEAVY_ANSWER)


def _one(name: str, duration_ns: int, rng: Random) -> Script:
    person, dialogues = draw_person(rng), chats.load()
    begins_ns = round(rng.random() * min(BEGIN_NS, duration_ns / 2))
    turns: list[ScriptedTurn] = []
    elapsed_ns, reading_ns = begins_ns, 0
    for number in count():
        session, (num_document, _) = f"{name}/{number}", rng.choice(_lengths())
        for place, words in enumerate(dialogues.draw(rng)):
            num_output = rng.choice(_lengths())[1]
            typing_ns = person.typing_ns(words)
            document = () if place else (Part(f"{session}/document", num_document),)
            turns.append(
                ScriptedTurn(
                    session=session,
                    parts=(*document, Part(f"{session}/{place}", tokens_of(words))),
                    num_output=num_output,
                    after=(len(turns) - 1,) if turns else (),
                    wait_ns=reading_ns + typing_ns,
                    hint=Hint(lead_ns=typing_ns),
                )
            )
            elapsed_ns += reading_ns + typing_ns
            if elapsed_ns >= duration_ns:
                return Script(name=name, turns=tuple(turns), begins_ns=begins_ns)
            thinking_ns = round(rng.expovariate(1 / THINKING_S) * SECOND_NS)
            reading_ns = person.reading_ns(num_output) + thinking_ns
    raise AssertionError("sessions never end")
