"""A server that is slow: a relay before it, which holds back what it answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

CHUNK_BYTES = 64 * 1024
METHODS = (b"GET", b"PUT", b"POST", b"DELETE", b"HEAD")


class Relay:
    """Requests pass at once; answers do, unless they are held.

    Attributes:
        address: where it listens.
        held: requests since the hold, their first lines.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._may_answer = asyncio.Event()
        self._may_answer.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.held: list[str] = []

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Nothing is answered while the body runs; afterwards all is."""
        self.held.clear()
        self._may_answer.clear()
        try:
            yield
        finally:
            self._may_answer.set()

    def holds(self, method: str, part: str = "") -> bool:
        """Whether such a request is among them."""
        return any(line.startswith(f"{method} ") and part in line for line in self.held)

    async def close(self) -> None:
        """Cut all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_client(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        """A client connects."""
        task = asyncio.create_task(self._serve(near, to_near))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        far, to_far = await asyncio.open_connection("127.0.0.1", self._port)
        answers = asyncio.create_task(self._answer(far, to_near))
        try:
            with suppress(ConnectionError):
                while data := await near.read(CHUNK_BYTES):
                    if not self._may_answer.is_set() and data.startswith(METHODS):
                        self.held.append(data.partition(b"\r\n")[0].decode())
                    to_far.write(data)
                    await to_far.drain()
        finally:
            answers.cancel()
            for writer in (to_near, to_far):
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

    async def _answer(self, far: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await far.read(CHUNK_BYTES):
                await self._may_answer.wait()
                to_near.write(data)
                await to_near.drain()
            to_near.close()


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[Relay]:
    """Before the server on this port of this machine, in the test's own event loop."""
    made = Relay(port)
    server = await asyncio.start_server(made.on_client, "127.0.0.1", 0)
    made.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await made.close()
        await server.wait_closed()
