"""A model that two processes compute, served: its replies are those of one process, and they go on
when either process dies.
"""

import asyncio
import os
import signal
from pathlib import Path

import orjson
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from loadtest.chaos.sse import Stream, stream_chat
from loadtest.deployment import processes_of
from services.worker.models.demo_adapters import make_demo_adapter
from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster

ADAPTER = "digits"
REPLY_TOKENS = 250  # enough that they are not over when a rank is killed
ROUNDING = 1e-3  # of a logit

RANKS = {"SYMPHONY_TENSOR_PARALLEL": "2"}


def other_rank(cluster: Cluster) -> int:
    """The pid of the rank that is not the worker."""
    (pid,) = (p for p, words in processes_of(cluster.data_dir).items() if "worker.rank" in words)
    return pid


async def begin(cluster: Cluster, model: str) -> "tuple[Stream, asyncio.Task[None]]":
    """A greedy reply; returns when some of it has come."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Count the waves, one by one. " * 4}],
        "max_tokens": REPLY_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }
    stream = Stream(0, 0, 0.0)
    task = asyncio.create_task(stream_chat(cluster.port, orjson.dumps(body), stream))
    while len(stream.tokens) < 5:
        assert not task.done(), stream
        await asyncio.sleep(0.01)
    return stream, task


async def disturbed(cluster: Cluster) -> dict[str, Stream]:
    """Replies by model, in the midst of which a rank is killed."""
    begun = {model: await begin(cluster, model) for model in (ADAPTER, DEMO_MODEL_ID)}
    assert not any(task.done() for _, task in begun.values()), "too late to disturb"
    os.kill(other_rank(cluster), signal.SIGKILL)
    await asyncio.gather(*(task for _, task in begun.values()))
    return {model: stream for model, (stream, _) in begun.items()}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_rank_that_is_killed_costs_no_token_of_what_one_process_says(tmp_path: Path) -> None:
    options = ("--model", "demo", "--adapter", ADAPTER)
    with Cluster(tmp_path / "data", *options, settings=RANKS) as cluster:
        worker, rank = cluster.pids()["worker-0"], other_rank(cluster)
        replies = asyncio.run(disturbed(cluster))
        assert {each.trouble for each in replies.values()} == {""}
        cluster.wait_restarted("worker-0", worker)
        assert other_rank(cluster) != rank
        base = cluster.data_dir / "models" / DEMO_MODEL_ID
        adapter = make_demo_adapter(ADAPTER, base, tmp_path / ADAPTER)
        whole = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    for model, reply in replies.items():
        assert len(reply.tokens) == REPLY_TOKENS
        with torch.inference_mode():
            ids = torch.tensor([[*reply.prompt, *reply.tokens]])
            if model == ADAPTER:
                logits = whole(input_ids=ids).logits[0]
            else:
                with whole.disable_adapter():
                    logits = whole(input_ids=ids).logits[0]
        logits = logits[len(reply.prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(reply.tokens)[:, None])[:, 0]
        assert (chosen >= logits.amax(1) - ROUNDING).all(), "another token than one process says"
