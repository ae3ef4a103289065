"""``python -m services.frontend.rendering.child PARENT_PID``: render, tokenize and detokenize what
comes over stdin, one piece after another, until it is killed or its parent ends.
"""

import os
import resource
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from services.frontend.rendering import frames, template_limits
from services.frontend.rendering.tokenizer import (
    LOAD_ERRORS,
    ModelTokenizer,
    import_library,
    load_tokenizer,
)
from services.frontend.rendering.without_torch import without_torch
from shared.errors import InvalidRequest
from shared.runtime.dying import die_with_parent, limit_memory

TOKENIZERS_MAX = 16  # kept loaded
WORK_BYTES_MAX = 4 * 1024**3  # of memory, beside what the start took


def main(parent: int) -> None:
    """Work until stdin ends."""
    die_with_parent(parent)
    # Whatever a library prints goes to the log, not between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tasks = os.fdopen(0, "rb")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    without_torch()
    import_library()
    template_limits.install()
    limit_memory(WORK_BYTES_MAX)
    _send(answers, frames.READY)
    tokenizers: dict[str, ModelTokenizer] = {}
    while head := tasks.read(frames.LENGTH.size):
        size = frames.LENGTH.unpack(head)[0]
        task = frames.unpack_task(tasks.read(size))
        try:
            tokenizer = _tokenizer(tokenizers, task)
        except LOAD_ERRORS as error:
            _send(answers, frames.UNLOADED, str(error).encode())
            continue
        _send(answers, frames.BEGUN)
        try:
            kind, data = _done(tokenizer, task, size)
        except InvalidRequest as error:
            kind, data = frames.REFUSED, error.message.encode(errors="replace")
        except template_limits.TemplateTooSlow:
            kind, data = frames.SLOW, b""
        _send(answers, kind, data)


def _done(tokenizer: ModelTokenizer, task: frames.Task, size: int) -> tuple[bytes, bytes]:
    operate = OPERATIONS[task.operation]
    if task.operation not in frames.TEMPLATE_OPERATIONS:
        return operate(tokenizer, *task.arguments)
    with template_limits.limited(size, task.template_cpu_s):
        return operate(tokenizer, *task.arguments)


def _names(tokenizer: ModelTokenizer) -> tuple[bytes, bytes]:
    return frames.TEXT, "\n".join(sorted(tokenizer.template_names)).encode()


def _render(tokenizer: ModelTokenizer, *arguments: Any) -> tuple[bytes, bytes]:
    try:
        return frames.TEXT, tokenizer.render(*arguments).encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the model's chat template: it writes what is no text") from None


def _encode(
    tokenizer: ModelTokenizer, text: str, special: bool, tokens_max: int | None
) -> tuple[bytes, bytes]:
    tokens = tokenizer.encode(text, special=special)
    if tokens_max is not None and len(tokens) > tokens_max:
        return frames.COUNT, frames.LENGTH.pack(len(tokens))
    return frames.TOKENS, frames.pack_tokens(tokens)


def _decode(tokenizer: ModelTokenizer, tokens: bytes) -> tuple[bytes, bytes]:
    return frames.TEXT, tokenizer.decode_all(frames.unpack_tokens(tokens)).encode()


def _echo(tokenizer: ModelTokenizer, tokens: bytes) -> tuple[bytes, bytes]:
    return frames.ECHO, frames.pack_echo(*tokenizer.echo(frames.unpack_tokens(tokens)))


OPERATIONS: dict[frames.Operation, Callable[..., tuple[bytes, bytes]]] = {
    "names": _names,
    "render": _render,
    "encode": _encode,
    "decode": _decode,
    "echo": _echo,
}


def _tokenizer(loaded: dict[str, ModelTokenizer], task: frames.Task) -> ModelTokenizer:
    if task.tokenizer not in loaded:
        loaded[task.tokenizer] = load_tokenizer(task.source)
        if len(loaded) > TOKENIZERS_MAX:
            del loaded[next(iter(loaded))]  # the oldest
    return loaded[task.tokenizer]


def _send(answers: BinaryIO, kind: bytes, data: bytes = b"") -> None:
    answers.write(frames.pack_answer(kind, data))
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
