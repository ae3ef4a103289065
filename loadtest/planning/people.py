"""Scripts of people whose sessions are anywhere in their life.

Everybody's history is brought in before the workload begins, by a turn that is answered with one
token; then people read, type and ask as those of `sharegpt-like` do. A session that has grown to
its longest ends, and the same person begins another one.
"""

from random import Random

from loadtest.planning.demand import (
    READING_WPM,
    REPLY_SPREAD,
    SPEED_SPREAD,
    TYPED_SPREAD,
    TYPED_WORDS,
    TYPING_WPM,
    Demand,
)
from loadtest.sim.timeline import SECOND
from loadtest.workloads.people import Person, tokens_of
from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn

ANSWER_S_A_TOKEN = 0.02  # what a script reckons with; a slower answer makes it longer


def people(demand: Demand, bring_in_ns: int, lasts_ns: int, seed: int) -> list[Script]:
    """One script a person, the same for the same seed.

    Args:
        bring_in_ns: over which histories are brought in.
        lasts_ns: that people ask for after that.
    """
    return [
        _one(f"user{number}", demand, bring_in_ns, lasts_ns, Random(f"{seed}/plan/{number}"))
        for number in range(demand.users)
    ]


def _one(name: str, demand: Demand, bring_in_ns: int, lasts_ns: int, rng: Random) -> Script:
    person = Person(
        READING_WPM * rng.lognormvariate(0.0, SPEED_SPREAD),
        TYPING_WPM * rng.lognormvariate(0.0, SPEED_SPREAD),
    )
    shortest, longest = demand.history_range
    history = shortest + round(rng.random() * (longest - shortest))
    begins_ns = round(rng.random() * bring_in_ns)
    first_ns = round(rng.random() * demand.think_s * SECOND)  # anywhere in the first cycle
    brought = (Part(f"{name}/before", max(history, 1)),)
    turns = [ScriptedTurn(session=f"{name}/0", parts=brought, num_output=1)]
    wait_ns = bring_in_ns - begins_ns + first_ns
    elapsed_ns, session = first_ns, 0
    while elapsed_ns < lasts_ns:
        said_words = max(round(TYPED_WORDS * rng.lognormvariate(0.0, TYPED_SPREAD)), 1)
        num_output = max(round(demand.reply * rng.lognormvariate(0.0, REPLY_SPREAD)), 1)
        num_output = min(num_output, 2 * demand.reply)
        said = min(tokens_of(said_words), round(2 * demand.new_tokens))
        parts = [Part(f"{name}/{len(turns)}", said)]
        if history > longest:
            session += 1
            history = shortest
            if shortest:
                parts.insert(0, Part(f"{name}/{session}/begins", shortest))
        typing_ns = person.typing_ns(said_words)
        turns.append(
            ScriptedTurn(
                session=f"{name}/{session}",
                parts=tuple(parts),
                num_output=num_output,
                after=(len(turns) - 1,),
                wait_ns=wait_ns,
                hint=Hint(lead_ns=typing_ns),
            )
        )
        history += said + num_output
        elapsed_ns += round(num_output * ANSWER_S_A_TOKEN * SECOND)
        wait_ns = person.reading_ns(num_output) + typing_ns
        elapsed_ns += wait_ns
    return Script(name=name, turns=tuple(turns), begins_ns=begins_ns)
