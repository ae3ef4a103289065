"""What a turn's reply is held to, as it goes through vLLM to the process that masks its tokens.

vLLM takes a grammar as one text, checks that in our process, and begins with it behind the prompt.
A turn that goes on after a failure has to begin further inside; and what our grammars mean is said
by our own reader of them. So the text that vLLM gets is a grammar of nothing whose comment holds
the form; `services.worker.vllm.form_backend` reads that in vLLM's engine process.
"""

from base64 import b64decode, b64encode
from dataclasses import dataclass, field

from services.worker.core.turns.turn import Turn
from shared.wire.messages import decode, encode

NOTHING = 'start: ""\n// '  # in Lark; all that follows is a comment


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Attributes:
    grammar: as `SamplingParams.grammar`.
    json_after: as `SamplingParams.json_after`.
    generated: tokens of the reply that earlier attempts generated.
    """

    grammar: str
    json_after: list[str] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)


def form_of(turn: Turn) -> Form | None:
    """What a turn's reply is held to; None: nothing."""
    sampling, num_before = turn.request.sampling, turn.request.num_generated_before
    if not sampling.grammar:
        return None
    return Form(
        grammar=sampling.grammar,
        json_after=list(sampling.json_after),
        generated=list(turn.tokens[len(turn.tokens) - num_before :]),
    )


def as_lark(form: Form) -> str:
    """A text that vLLM takes for a grammar."""
    return NOTHING + b64encode(encode(form)).decode()


def read_form(text: str) -> Form:
    """Inverse of `as_lark`.

    Raises:
        ValueError, MalformedMessage: it is no such text.
    """
    if not text.startswith(NOTHING):
        raise ValueError("a grammar that the worker did not write")
    return decode(Form, b64decode(text[len(NOTHING) :], validate=True))
