"""The least an HTTP edge on FastAPI can do: the baseline of ``symphony bench http``."""

import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

app = FastAPI()

EVENTS = (b'data: {"choices": [{"delta": {"content": "T"}}]}\n\n', b"data: [DONE]\n\n")


@app.post("/v1/chat/completions")
async def answer(request: Request) -> StreamingResponse:
    """Read the body, stream two events."""
    await request.body()

    async def events() -> AsyncIterator[bytes]:
        for event in EVENTS:
            yield event

    return StreamingResponse(events(), media_type="text/event-stream")


@app.get("/health")
async def health() -> dict[str, str]:
    """Whether the server is up."""
    return {}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", loop="uvloop", http="httptools")
