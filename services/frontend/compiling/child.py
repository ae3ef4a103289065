"""``python -m services.frontend.compiling.child PARENT_PID``: make and compile the grammars of what
comes over stdin, one after another, until it is killed or its parent ends.

The library has no bound in time or memory of its own: a grammar that takes more memory than
`WORK_BYTES_MAX` ends this process (SIGABRT), and one that recurses deeper than the stack, too
(SIGSEGV). Both depend on the grammar alone: what is left of others' is little, since a process
that keeps more than `KEPT_BYTES_MAX` ends.
"""

import os
import pickle
import resource
import sys
import threading

from llguidance import LLTokenizer

from services.frontend.core.replies.forms import (
    Form,
    is_open,
    plain_grammar,
    pointed_flaw,
    whole_grammar,
)
from services.frontend.rendering import frames
from shared.runtime.deep_threads import STACK_BYTES
from shared.runtime.dying import die_with_parent, limit_memory, mapped_bytes
from shared.wire.grammar import REASON_CHARS_MAX, byte_tokenizer, flaw_of

WORK_BYTES_MAX = 256 * 1024**2  # beside what the start took
KEPT_BYTES_MAX = 64 * 1024**2
TOO_LARGE = f"it takes more than {WORK_BYTES_MAX // 1024**2} MiB to compile"


def main(parent: int) -> None:
    """Work until stdin ends, in a thread with room for deep recursion."""
    die_with_parent(parent)
    # Whatever a library prints goes to the log, not between the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_work, args=(answers,))
    thread.start()
    thread.join()


def _work(descriptor: int) -> None:
    tokenizer = byte_tokenizer()
    limit_memory(WORK_BYTES_MAX)
    kept_bytes_max = mapped_bytes() + KEPT_BYTES_MAX
    with os.fdopen(0, "rb") as tasks, os.fdopen(descriptor, "wb") as answers:
        answers.write(frames.pack_answer(frames.READY))
        answers.flush()
        while head := tasks.read(frames.LENGTH.size):
            form: Form = pickle.loads(tasks.read(frames.LENGTH.unpack(head)[0]))  # our parent's
            answers.write(frames.pack_answer(frames.BEGUN))
            answers.flush()
            answers.write(frames.pack_answer(*_made(form, tokenizer)))
            answers.flush()
            if mapped_bytes() > kept_bytes_max:
                break


def _made(form: Form, tokenizer: LLTokenizer) -> tuple[bytes, bytes]:
    """An answer's kind and data: a grammar, or why there is none."""
    try:
        plain = plain_grammar(form)
        flaw = flaw_of(plain, tokenizer)
        if not flaw:
            kind = frames.OPEN if is_open(form) else frames.TEXT
            return kind, whole_grammar(form, plain).encode()
        pointed = pointed_flaw(form, lambda grammar: flaw_of(grammar, tokenizer))
        flaw = (pointed or flaw)[:REASON_CHARS_MAX]
    except (ValueError, RecursionError) as error:
        flaw = str(error)[:REASON_CHARS_MAX] or type(error).__name__
    except MemoryError:
        flaw = TOO_LARGE
    return frames.REFUSED, flaw.encode(errors="replace")


if __name__ == "__main__":
    main(int(sys.argv[1]))
