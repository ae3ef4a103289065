"""``receiver.py shm PARENT_PID FILE ROWS IN_BYTES OUT_BYTES`` or ``socket PARENT_PID FILE IN_BYTES
OUT_BYTES``: takes what is handed over, and hands back as much as would be made of it, until it is
killed or its parent ends.

Nothing is computed. What is shared is where a kernel would read it and where it would write to.
"""

import socket
import sys
import time

from services.worker.device.assist.channel import SPEC_LETTER, Channel, ChannelShape, Outcome
from services.worker.device.assist.waiting import wait_for
from shared.dying import die_with_parent

LOOKS_NS = 60_000_000_000  # of one wait: any time


def over_memory(file_number: int, shape: ChannelShape) -> None:
    """Answer orders."""
    channel = Channel.attach(file_number, shape)
    answered = 0

    def is_asked() -> bool:
        return channel.asked != answered

    while True:
        if wait_for(is_asked, time.monotonic_ns() + LOOKS_NS, channel.called):
            answered = channel.asked
            channel.answer(answered, SPEC_LETTER, Outcome.DONE)


def over_socket(file_number: int, in_bytes: int, out_bytes: int) -> None:
    """Answer each input with an output."""
    given, made = memoryview(bytearray(in_bytes)), bytes(out_bytes)
    with socket.socket(fileno=file_number) as other:
        while True:
            got = 0
            while got < in_bytes:
                if not (num := other.recv_into(given[got:])):
                    return
                got += num
            other.sendall(made)


if __name__ == "__main__":
    parent, *numbers = (int(word) for word in sys.argv[2:])
    die_with_parent(parent)
    if sys.argv[1] == "shm":
        over_memory(numbers[0], ChannelShape(*numbers[1:]))
    else:
        over_socket(*numbers)
