"""The simulated cluster: the same run for the same seed, nothing lost under pressure, and costs as
bandwidths say."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from loadtest.cluster.cluster import Cluster
from loadtest.cluster.links import Link
from loadtest.cluster.measured import FRONTEND_TURN_NS, STEP_HOST_NS
from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.plant import build_plant
from loadtest.cluster.result import ClusterResult
from loadtest.cluster.run import run_cluster
from loadtest.workloads.script import Hint, Part, Script, ScriptedTurn
from shared.blocks import BLOCK_TOKENS

SECOND = 1_000_000_000
FIRST, MORE, ANSWER = 640, 24, 12


@pytest.fixture
def small(tmp_path: Path) -> ClusterOptions:
    """Four GPUs on two hosts, whose memory is full all the time."""
    path = tmp_path / "small.json"
    path.write_bytes(
        orjson.dumps(
            {
                "name": "small", "base_ms": 10.0, "prefill_ms_per_token": 0.4,
                "decode_ms_per_turn": 0.1, "num_layers": 4, "kv_bytes_per_token": 65536,
                "max_model_len": 2048, "num_kv_tokens": 4096,
            }
        )
    )  # fmt: skip
    return ClusterOptions(
        profile=str(path), gpus=4, gpus_per_host=2, dram_gb=0.4, disk_gb=10.0, users=24,
        duration_ns=40 * SECOND,
    )  # fmt: skip


def chats(num: int, num_turns: int = 4, wait_ns: int = 8 * SECOND) -> list[Script]:
    """People whose sessions begin long and grow a little."""
    return [
        Script(
            name=f"p{person}",
            begins_ns=person * SECOND // 8,
            turns=tuple(
                ScriptedTurn(
                    session="s",
                    parts=(Part(f"{person}.{turn}", MORE if turn else FIRST),),
                    num_output=ANSWER,
                    after=(turn - 1,) if turn else (),
                    wait_ns=wait_ns if turn else 0,
                    hint=Hint(lead_ns=4 * SECOND, expected_in_ns=4 * SECOND) if turn else None,
                )
                for turn in range(num_turns)
            ),
        )
        for person in range(num)
    ]


def run(options: ClusterOptions, scripts: list[Script]) -> ClusterResult:
    return replace(run_cluster(options, scripts), took_s=0.0)


def test_the_same_seed_is_the_same_run_and_nothing_is_lost_where_memory_is_full(
    small: ClusterOptions,
) -> None:
    scripts, options = chats(24, num_turns=3), replace(small, policy="random", missed=0.3)
    result = run(options, scripts)
    assert (result.turns, result.failed, result.unfinished) == (3 * 24, 0, 0)
    assert result.cached_tokens["disk"] > 0, "it is not told where history was"
    assert result.loaded_tokens["disk"] > 0, "the arenas were large enough for all"
    assert result.loaded_tokens["peer"] > 0, "nobody's history was at another host"
    assert result.prompt_tokens == 24 * sum(FIRST + turn * (MORE + ANSWER) for turn in range(3))
    assert run(options, scripts) == result


def test_hinted_turns_wait_for_less_than_others_and_no_history_is_computed_again(
    small: ClusterOptions,
) -> None:
    options = replace(small, users=24, dram_gb=2.0)
    hinted = run(options, chats(24))
    missed = run(replace(options, missed=1.0), chats(24))
    assert hinted.prefetch.used > 60 and missed.prefetch.used == 0
    assert hinted.recomputed_tokens < 0.02 * hinted.prompt_tokens
    assert hinted.ttft_ms.p50 < missed.ttft_ms.p50


def test_where_pools_keep_nothing_history_is_brought_up_again(small: ClusterOptions) -> None:
    options = replace(small, dram_gb=4.0)
    whole = run(options, chats(6))
    without = run(replace(options, without=frozenset({"prefix-cache"})), chats(6))
    assert sum(without.loaded_tokens.values()) > sum(whole.loaded_tokens.values())


def test_prefetched_history_that_is_pinned_keeps_turns_waiting(small: ClusterOptions) -> None:
    """Each pool has room for six sessions, and hints of others come long before their turns."""
    scripts = [
        replace(
            script,
            turns=tuple(
                replace(turn, wait_ns=30 * SECOND, hint=Hint(lead_ns=30 * SECOND))
                if number
                else turn
                for number, turn in enumerate(script.turns)
            ),
        )
        for script in chats(36, num_turns=2)
    ]
    options = replace(small, dram_gb=4.0, duration_ns=60 * SECOND)
    whole = run(options, scripts)
    pinned = run(replace(options, without=frozenset({"cooperative"})), scripts)
    assert pinned.ttft_ms.mean > 3 * whole.ttft_ms.mean


def test_kv_that_is_packed_below_takes_less_room_there_and_gpu_time_to_unpack(
    small: ClusterOptions,
) -> None:
    plain, packed = build_plant(small), build_plant(replace(small, packing="cachegen"))
    assert packed.pool_blocks == plain.pool_blocks
    assert packed.arena_blocks == pytest.approx(3.5 * plain.arena_blocks, rel=0.01)
    unpack_ns = packed.unpack_page_ns * packed.num_layers * packed.pool_blocks
    pool_bytes = plain.page_bytes * plain.num_layers * plain.pool_blocks
    assert plain.unpack_page_ns == 0
    assert unpack_ns == pytest.approx(pool_bytes / 250)


def test_history_that_is_not_kept_is_computed_in_every_turn(small: ClusterOptions) -> None:
    options = replace(small, policy="recompute", without=frozenset({"prefix-cache"}))
    result = run(options, chats(6, num_turns=3))
    # of each last token of a turn nothing was computed before, and the tail of a block is not kept
    known = 6 * sum(FIRST - 1 + turn * (MORE + ANSWER) + ANSWER for turn in range(2))
    assert result.recomputed_tokens == known


def test_a_coarse_cluster_decodes_as_fast(small: ClusterOptions) -> None:
    scripts = [
        replace(each, turns=tuple(replace(t, num_output=64) for t in each.turns))
        for each in chats(12, num_turns=2)
    ]
    options = replace(small, profile="a100-llama3.1-8b", dram_gb=8.0)
    fine, coarse = run(options, scripts), run(replace(options, coarse=True), scripts)
    assert coarse.turns == fine.turns
    assert coarse.tpot_ms.mean == pytest.approx(fine.tpot_ms.mean, rel=0.02)


def test_a_cluster_whose_layers_move_in_groups_is_close_to_one_where_each_does(
    small: ClusterOptions,
) -> None:
    options = replace(small, profile="a100-llama3.1-8b", dram_gb=8.0)
    scripts = chats(12, num_turns=2)
    fine, grouped = run(options, scripts), run(replace(options, grouped=True), scripts)
    assert grouped.turns == fine.turns
    assert grouped.tpot_ms.mean == pytest.approx(fine.tpot_ms.mean, rel=0.02)
    assert grouped.ttft_ms.mean == pytest.approx(fine.ttft_ms.mean, rel=0.1)
    assert build_plant(replace(options, grouped=True)).block_tokens == BLOCK_TOKENS


def test_a_host_in_part_has_a_part_of_everything(small: ClusterOptions) -> None:
    whole, half = build_plant(small), build_plant(replace(small, host_share=0.5))
    for name in ("disk_bytes", "disk_read_bytes_per_s", "disk_write_bytes_per_s"):
        assert getattr(half, name) == pytest.approx(getattr(whole, name) / 2), name
    assert half.link_bytes_per_s == pytest.approx(whole.link_bytes_per_s / 2)
    assert half.arena_blocks == pytest.approx(whole.arena_blocks / 2, abs=1)
    assert half.pool_blocks == whole.pool_blocks


def test_all_of_a_prompt_was_found_or_is_computed(small: ClusterOptions) -> None:
    result = run(replace(small, dram_gb=2.0), chats(6, num_turns=3))
    num_found = sum(result.cached_tokens.values())
    num_new = 6 * (FIRST + 2 * (MORE + 1))  # nobody ran on an answer's last token
    assert num_found + result.recomputed_tokens == result.prompt_tokens - num_new
    assert result.cached_tokens["pool"] > 0


def test_what_a_script_waits_for_has_ended(small: ClusterOptions) -> None:
    turns = [
        ScriptedTurn(session="a", parts=(Part("a", 30),), num_output=5, agent="one"),
        ScriptedTurn(session="b", parts=(Part("b", 30),), num_output=5, agent="two", after=(0,)),
        ScriptedTurn(session="c", parts=(Part("c", 30),), num_output=5, agent="two", after=(0,)),
        ScriptedTurn(
            session="a", parts=(Part("d", 30),), num_output=5, agent="one", after=(1, 2),
            wait_ns=SECOND, hint=Hint(at_start_of=1),
        ),
    ]  # fmt: skip
    cluster = Cluster(replace(small, duration_ns=5 * SECOND))
    cluster.run([Script(name="flow", turns=tuple(turns))])
    # A turn's id begins with its place in its script, and ends in its session's hash.
    record_of = {
        turn_id.rpartition("-")[0]: record for turn_id, record in cluster.stats.turns.items()
    }
    records = [record_of[f"flow.{number}"] for number in range(4)]
    assert records[1].arrived_at_ns == records[2].arrived_at_ns == records[0].ended_at_ns
    last_ns = max(records[1].ended_at_ns, records[2].ended_at_ns)
    assert records[3].arrived_at_ns == last_ns + SECOND
    assert records[3].num_history == 30 + 5 - 1


def test_a_link_takes_one_transfer_after_the_other() -> None:
    link, other = Link(1e9), Link(0.5e9)
    assert link.take(1000, 0) == 1000
    assert link.take(1000, 500) == 2000
    assert link.take_through(other, 1000, 5000) == 7000
    assert (link.free_at_ns, other.free_at_ns) == (6000, 7000)


def test_the_first_token_of_a_lone_turn_takes_one_pass(small: ClusterOptions) -> None:
    result = run(small, chats(1, num_turns=1))
    profile, host_ms = build_plant(small).profile, STEP_HOST_NS / 1e6
    frontend_ms = FRONTEND_TURN_NS / 1e6
    first_ms = profile.step_ms(FIRST, 0, FIRST) + host_ms + frontend_ms
    assert result.ttft_ms.mean == pytest.approx(first_ms, abs=4.0)
    assert result.tpot_ms.mean == pytest.approx(profile.step_ms(0, 1, FIRST) + host_ms, rel=0.02)


def test_what_was_asked_before_it_was_warm_does_not_count(small: ClusterOptions) -> None:
    scripts, options = chats(6), replace(small, dram_gb=2.0)
    warmed = replace(options, warm_ns=16 * SECOND, duration_ns=options.duration_ns - 16 * SECOND)
    whole, cluster = run(options, scripts), Cluster(warmed)
    cluster.run(scripts)
    late = cluster.stats.result(warmed.duration_ns, cluster.loaded_tokens(), 0.0)
    asked = [each.arrived_at_ns for each in cluster.stats.turns.values()]
    assert whole.turns == len(asked) == 4 * 6
    assert late.turns == sum(at_ns >= warmed.warm_ns for at_ns in asked) < whole.turns
    assert 0 < late.prefetch.used < whole.prefetch.used
    assert late.requests_per_s == late.turns / 24


def test_how_far_apart_gpus_are_is_told(small: ClusterOptions) -> None:
    """One turn for so long that it is on one of four in nearly every sample."""
    [script] = chats(1, num_turns=1)
    script = replace(script, turns=(replace(script.turns[0], num_output=300),))
    result = run(replace(small, duration_ns=3 * SECOND), [script])
    assert result.load_max_minus_min == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("policy", "tiers"), [("recompute", {"pool"}), ("sticky", {"pool", "host"})]
)
def test_another_system_finds_history_in_its_own_tiers_alone(
    policy: str, tiers: set[str], small: ClusterOptions
) -> None:
    result = run(replace(small, policy=policy), chats(24, num_turns=3))
    assert (result.turns, result.failed, result.unfinished) == (3 * 24, 0, 0)
    found = {tier for tier, tokens in result.cached_tokens.items() if tokens}
    assert found <= tiers and result.recomputed_tokens > 0


def test_running_turns_move_off_a_worker_that_has_more(small: ClusterOptions) -> None:
    """All sessions of one worker are continued at length, those of the others are not."""
    scripts = [
        replace(each, turns=(first, replace(second, num_output=5 if number % 4 else 500)))
        for number, each in enumerate(chats(32, num_turns=2))
        for first, second in [each.turns]
    ]
    stay, move = (run(replace(small, policy=p), scripts) for p in ("sticky", "migrate-sticky"))
    for result in (stay, move):
        assert (result.turns, result.failed, result.unfinished) == (2 * 32, 0, 0)
    assert move.cached_tokens["peer"] > 0 == stay.cached_tokens["peer"], "KV follows its turn"
