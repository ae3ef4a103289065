"""`burstgpt`: sessions with the pauses that real people made (17, 116 and 1,377 s at p10, p50 and
p90), which are much longer than reading and typing.

A prompt of the trace holds all of its session, or what its server left of it: what is new is what
it has more than history, or one token. People type all of that, if the pause is long enough.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, groupby, pairwise
from random import Random

from loadtest.workloads.people import draw_person, words_of
from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn
from loadtest.workloads.traces import rows_of

FILE = "burstgpt/burstgpt3_first400.csv.gz"
SQUEEZED = 10


@dataclass(frozen=True, slots=True)
class Said:
    """Attributes:
    num_new, num_output: tokens.
    pause_ns: since the last answer of the session; of the first turn, 0.
    """

    num_new: int
    num_output: int
    pause_ns: int = 0


@cache
def load_sessions() -> tuple[tuple[Said, ...], ...]:
    """Chats of the file; answers without a token (failed ones) are left out."""
    rows = [
        row
        for row in rows_of(FILE)
        if row["Log Type"] == "Conversation log" and int(row["Response tokens"]) > 0
    ]
    rows.sort(key=lambda row: (row["Session ID"], float(row["Timestamp"])))
    return tuple(
        _session(list(session)) for _, session in groupby(rows, key=lambda row: row["Session ID"])
    )


def _session(rows: list[dict[str, str]]) -> tuple[Said, ...]:
    said = [Said(int(rows[0]["Request tokens"]), int(rows[0]["Response tokens"]))]
    history = said[0].num_new + said[0].num_output
    for before, row in pairwise(rows):
        ended_s = float(before["Timestamp"]) + float(before["Elapsed time"])
        pause_ns = max(round((float(row["Timestamp"]) - ended_s) * 1e9), 0)
        num_new = max(int(row["Request tokens"]) - history, 1)
        said.append(Said(num_new, int(row["Response tokens"]), pause_ns))
        history += num_new + said[-1].num_output
    return tuple(said)


def burstgpt(num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """Everybody has one session after the other, each drawn from the real ones, with a pause before
    the next as there are within them. All begin somewhere in a pause, within a session whose text
    their first turn brings with it. Who makes no turn in the duration is left out.
    """
    people = [
        _one(f"user{number}", duration_ns, Random(f"{seed}/burst/{number}"))
        for number in range(num_users)
    ]
    return [script for script in people if script.turns]


def burstgpt_squeezed(num_users: int, duration_ns: int, seed: int) -> list[Script]:
    """The same with all pauses and typing a tenth: the load of ten times the people, from as many
    sessions.
    """
    return [
        replace(
            script,
            turns=tuple(_squeezed(turn) for turn in script.turns),
        )
        for script in burstgpt(num_users, duration_ns * SQUEEZED, seed)
    ]


def _squeezed(turn: ScriptedTurn) -> ScriptedTurn:
    hint = turn.hint
    if hint is not None:
        hint = replace(hint, lead_ns=hint.lead_ns // SQUEEZED)
    return replace(turn, wait_ns=turn.wait_ns // SQUEEZED, hint=hint)


@cache
def _pauses() -> tuple[list[tuple[int, int]], list[int]]:
    """Where in which session each pause is, and all that lasted till then."""
    places = [
        (number, place)
        for number, session in enumerate(load_sessions())
        for place in range(1, len(session))
    ]
    sessions = load_sessions()
    return places, list(accumulate(sessions[number][place].pause_ns for number, place in places))


def _one(name: str, duration_ns: int, rng: Random) -> Script:
    sessions, person = load_sessions(), draw_person(rng)
    places, until_ns = _pauses()
    # Long pauses are most of anybody's time: who looks at any moment finds most in one of those.
    ((of_session, place),) = rng.choices(places, cum_weights=until_ns)
    session = sessions[of_session]
    pause_ns = round(rng.random() * session[place].pause_ns)
    turns: list[ScriptedTurn] = []
    elapsed_ns = number = 0
    while (elapsed_ns := elapsed_ns + pause_ns) < duration_ns:
        said = session[place]
        own = f"{name}/{number}"
        parts = [Part(f"{own}/{place}", said.num_new)]
        if place and not turns:
            before = sum(each.num_new + each.num_output for each in session[:place])
            parts.insert(0, Part(f"{own}/before", before))
        turns.append(
            ScriptedTurn(
                session=own,
                parts=tuple(parts),
                num_output=said.num_output,
                after=(len(turns) - 1,) if turns else (),
                wait_ns=pause_ns,
                hint=Hint(lead_ns=person.typing_ns(words_of(said.num_new))),
            )
        )
        place += 1
        if place < len(session):
            pause_ns = session[place].pause_ns
        else:
            session, place, number = rng.choice(sessions), 0, number + 1
            of_session, at = rng.choice(places)
            pause_ns = sessions[of_session][at].pause_ns
    return Script(name=name, turns=tuple(turns))
