"""The grammar that a reply is held to, from all that a request says of it."""

from services.frontend.api.bodies import Generate
from services.frontend.api.text.structure import structure_of
from services.frontend.api.text.tools import Tools
from services.frontend.app import App
from services.frontend.core.structures import Structure, embedded, grammar_of, literal
from services.frontend.core.tools.forcing import calls_grammar
from services.frontend.tokenizer import ModelTokenizer
from shared.errors import InvalidRequest


async def held_to(
    app: App, body: Generate, tokenizer: ModelTokenizer, tools: Tools | None = None
) -> str:
    """A grammar, which can be used; empty: the reply may be anything.

    Args:
        tools: that it may call, or has to.

    Raises:
        InvalidRequest: it cannot be held to what the request says, and why.
    """
    wanted = structure_of(body)
    if tools is not None and tools.is_forced:
        if wanted is not None:
            raise InvalidRequest(
                f"{wanted.name}: not together with a tool_choice that forces a call", wanted.name
            )
        return await _calls(app, tokenizer, tools)
    if wanted is None:
        return ""
    if tools is not None and wanted.kind == "json":
        return await _calls(app, tokenizer, tools, wanted)
    grammar = _written(wanted)
    await app.grammars.check(grammar, wanted.name)
    return grammar


async def _calls(
    app: App, tokenizer: ModelTokenizer, tools: Tools, wanted: Structure | None = None
) -> str:
    """Calls, or what is wanted instead."""

    def marked(mark: str) -> str:
        token = tokenizer.special_id(mark)
        return literal(mark) if token is None else f"<[{token}]>"

    def written(*, has_tokens: bool) -> str:
        rules = calls_grammar(
            tools.family,
            tools.rules,
            is_one=tools.calls_max == 1,
            names_outside=tokenizer.names_outside,
            marked=marked if has_tokens else literal,
            or_else="" if wanted is None else embedded(wanted.value),
        )
        return _written(Structure("tools", "lark", rules))

    # Special tokens are the model's own, and nobody else's vocabulary has them.
    await app.grammars.check(written(has_tokens=False), "tools" if wanted is None else wanted.name)
    return written(has_tokens=True)


def _written(wanted: Structure) -> str:
    try:
        return grammar_of(wanted)
    except ValueError as error:
        param = wanted.name.partition(".")[0]
        raise InvalidRequest(f"{wanted.name}: {error}", param, code="invalid_grammar") from None
