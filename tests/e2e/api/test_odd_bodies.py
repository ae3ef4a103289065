"""Bodies that no program would send, to a real model: they kill nothing, and cost no other stream
anything.
"""

from typing import Any

import httpx

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.e2e.replies import Reply

POISONS: tuple[dict[str, Any], ...] = (
    {"temperature": 1e-40, "top_p": 0.9},
    {"temperature": 1e-320, "min_p": 1},
    {"repetition_penalty": 1e-40, "top_k": 5},
    {"logit_bias": {"000000000000999999": 1}},
    {"logit_bias": {"0000000000001" + "9" * 30: 1}},
    {"logit_bias": {"000": -100, "0": 100}},
    {"stop_token_ids": [2**31 - 1], "min_tokens": 3},
    {"allowed_token_ids": [2**31 - 1]},
    {"seed": -(2**63), "top_p": 1e-300},
    {"max_tokens": 2**31, "min_tokens": 2**31},  # one less is cut to the room that there is
)


def test_no_body_kills_a_process_or_costs_another_stream_anything(
    cluster: Cluster,
) -> None:
    before = cluster.pids()
    with cluster.client() as client:
        undisturbed = Reply(client).read_to_end()
        reply = Reply(client)
        reply.read(5)
        for poison in POISONS * 2:  # a client that tries again
            body = {
                "model": DEMO_MODEL_ID, "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 4, **poison,
            }  # fmt: skip
            answer = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=60)
            assert answer.status_code in (200, 400), (poison, answer.text)
        assert reply.read_to_end() == undisturbed
    slow = {"X-SLO-TTFT-Ms": "1e308"}
    body = {"model": DEMO_MODEL_ID, "prompt": "hi", "max_tokens": 2}
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body, headers=slow, timeout=60)
    assert answer.status_code == 400
    assert cluster.pids() == before


def test_a_long_prompt_s_scores_come_in_as_many_messages_as_they_need(cluster: Cluster) -> None:
    """Seven thousand log-probabilities with twenty likelier ones each are four megabytes."""
    before = cluster.pids()
    body = {
        "model": DEMO_MODEL_ID, "prompt": [[65 + n % 26 for n in range(7000)]], "max_tokens": 1,
        "echo": True, "logprobs": 20, "temperature": 0,
    }  # fmt: skip
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    scores = answer.json()["choices"][0]["logprobs"]["token_logprobs"]
    assert len(scores) == 7001 and scores[0] is None and None not in scores[1:]
    assert cluster.pids() == before
