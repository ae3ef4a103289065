"""Adapters' images in the engine: who waits for them, who makes them, who may take their pages."""

import random
from dataclasses import dataclass, field, replace

import pytest

from services.worker.core.adapters.adapters import AHEAD_MAX, PAUSES_NS
from services.worker.core.adapters.image import NO_LINE, AdapterUse
from services.worker.core.adapters.streaming import TRY_AGAIN, StartModes
from services.worker.core.costs.costs import Line
from services.worker.core.costs.step_models import LoraLoad
from services.worker.core.effects import (
    BuildImage,
    CommitBlocks,
    Effect,
    LoadPages,
    ReleaseTicket,
    StageImage,
    StageTurn,
    StoreBlocks,
)
from services.worker.core.engine.integrity import check_integrity
from services.worker.core.engine_limits import LoraStart
from services.worker.core.step import StepPlan
from services.worker.core.turns.turn import Turn
from shared.blocks import image_keys
from shared.ids import SessionId, TurnId
from shared.wire.messages import AdapterRef
from tests.unit.worker.driver import (
    MS,
    NUM_LAYERS,
    Engine,
    deltas,
    ends,
    limited,
    names,
    new_core,
    new_turn,
    of_kind,
    staged_blocks,
)
from tests.unit.worker.driver import announce as announce_turn

BLOCKS = 2


def adapter(name: str) -> AdapterRef:
    return AdapterRef(adapter_hash=name, name=name, lora_rank=8, ranks={"q": 8})


def turn_on(
    name: str,
    of: str,
    tokens: list[int] | None = None,
    *,
    blocks: int = BLOCKS,
    priority: int = 0,
) -> Turn:
    sampling = limited(2, ignore_eos=True)
    turn = new_turn(name, tokens or [5, 6, 7], sampling=sampling, priority=priority)
    return replace_adapter(turn, of, blocks) if of else turn


def replace_adapter(turn: Turn, of: str, blocks: int) -> Turn:
    turn.adapter = AdapterUse(adapter(of), blocks, can_be_assisted=True)
    return turn


def answer(
    engine: Engine,
    asked: StageImage,
    *,
    has_all: bool = True,
    ticket: int = 7,
    num_from_disk: int = 0,
) -> None:
    staged = staged_blocks(ticket, asked.keys if has_all else [], num_from_disk)
    engine.keep(engine.core.on_image_staged(asked.number, staged, engine.now_ns))


def build(engine: Engine, *, is_good: bool = True) -> BuildImage:
    """End the last build."""
    made = of_kind(engine.effects, BuildImage)[-1]
    good, bad = (made.pool_pages, []) if is_good else ([], made.pool_pages)
    engine.keep(engine.core.on_loaded(good, bad, engine.now_ns))
    return made


def connected(num_blocks: int = 16, turns_running_max: int = 64) -> Engine:
    engine = Engine(new_core(num_blocks, turns_running_max=turns_running_max))
    engine.core.write_behind.connect(1)
    return engine


def test_an_image_that_is_below_is_brought_up_before_its_turn_runs() -> None:
    engine = connected()
    engine.submit(turn_on("a", "x"))
    (asked,) = of_kind(engine.effects, StageImage)
    assert asked.keys == image_keys("", "x", BLOCKS)
    assert engine.plan() is None, "nothing is here yet"
    answer(engine, asked)
    assert engine.plan() is None
    assert of_kind(engine.effects, LoadPages) and not of_kind(engine.effects, BuildImage)
    engine.load_all(engine.effects)
    plan = engine.plan()
    assert plan is not None and plan.adapters.tolist() == [0]
    (entry,) = plan.images
    assert entry.adapter_hash == "x" and entry.pages.shape == (BLOCKS, NUM_LAYERS)
    engine.finish(plan)
    assert engine.plan().images == []  # type: ignore[union-attr]


def test_what_nobody_has_is_built_and_goes_below() -> None:
    engine = connected()
    engine.submit(turn_on("a", "x"))
    answer(engine, of_kind(engine.effects, StageImage)[0], has_all=False)
    assert engine.plan() is None
    made = build(engine)
    assert made.places == [(layer, block) for layer in range(NUM_LAYERS) for block in range(BLOCKS)]
    check_integrity(engine.core)
    engine.core.on_leased(list(range(40)))
    engine.step()
    written = [w for each in of_kind(engine.effects, StoreBlocks) for w in each.writes]
    assert [(w.key, w.tokens) for w in written] == [
        (key, [at]) for at, key in enumerate(image_keys("", "x", BLOCKS))
    ]
    assert of_kind(engine.store_all(), CommitBlocks)


def test_without_a_kvstore_it_is_built() -> None:
    engine = Engine()
    engine.submit(turn_on("a", "x"))
    assert engine.plan() is None
    build(engine)
    assert names(engine.step()) == ["a"]


def test_others_run_while_an_image_comes() -> None:
    engine = connected()
    engine.submit(turn_on("a", "x"))
    engine.submit(turn_on("b", ""))
    assert names(engine.step()) == ["b"]
    answer(engine, of_kind(engine.effects, StageImage)[0], has_all=False)
    engine.step()
    build(engine)
    assert names(engine.step()) == ["a"]


def test_rows_of_one_adapter_follow_each_other_and_meet_in_the_middle() -> None:
    engine = Engine(new_core(32))
    for name, of in (("a", "x"), ("b", ""), ("c", "y"), ("d", "x"), ("w", "z")):
        engine.submit(long_turn(name, of))
    build_all(engine)
    while engine.core.waiting:
        engine.step()
    engine.step()
    engine.keep(engine.core.on_cancel(TurnId("w")))
    for name, of in (("e", "y"), ("f", "z"), ("g", "")):
        engine.submit(long_turn(name, of))
    plan = engine.plan()
    assert plan is not None
    lines: list[int] = plan.adapters.tolist()
    rows = names(plan.rows())
    assert set(rows) == set("abcdefg")
    assert set(rows[:4]) == set("abcd"), "decodes come first"
    runs = [line for at, line in enumerate(lines) if at == 0 or lines[at - 1] != line]
    assert len(runs) == len(set(lines[:4])) + len(set(lines[4:])) - 1, "they meet"
    by_name = dict(zip(rows, lines, strict=True))
    assert by_name["a"] == by_name["d"] != by_name["c"] == by_name["e"]
    assert by_name["b"] == by_name["g"] == NO_LINE


def long_turn(name: str, of: str) -> Turn:
    turn = turn_on(name, of, [ord(name), 1, 2])
    turn.request = replace(turn.request, sampling=limited(50, ignore_eos=True))
    return turn


def build_all(engine: Engine) -> None:
    """End every build that waiting turns lead to."""
    plan = engine.plan()
    for made in of_kind(engine.effects, BuildImage):
        engine.keep(engine.core.on_loaded(made.pool_pages, [], engine.now_ns))
    if plan is not None:
        engine.finish(plan)


def test_a_step_knows_what_it_reads_of_adapters() -> None:
    """Each adapter once, however many rows it has; and the costs learn from it."""
    engine = Engine(new_core(32))
    for name, of in (("a", "x"), ("b", ""), ("c", "y"), ("d", "x")):
        engine.submit(long_turn(name, of))
    build_all(engine)
    while engine.core.waiting:
        engine.step()
    plan = engine.plan()
    image_bytes = BLOCKS * NUM_LAYERS * engine.core.page_bytes
    assert engine.core.flights[0].lora == LoraLoad(3, 8, 24, 2 * image_bytes)
    assert plan is not None
    engine.finish(plan)
    for number in range(40):
        engine.step_ns = 2 * MS if number < 20 else MS
        if number == 20:
            engine.keep(engine.core.on_cancel(TurnId("c")))
        engine.step()
    assert engine.core.costs.models.solve()["distinct"].r2 > 0.8


def test_two_that_cannot_be_there_together_take_turns() -> None:
    """A pool of five blocks, two images of two, and prompts that want two more each."""
    engine = Engine(new_core(5))
    engine.submit(turn_on("a", "x", list(range(1, 8))))
    engine.submit(turn_on("b", "y", list(range(11, 18))))
    Play(engine, random.Random(1), bad_share=0.0).finish()
    assert [end.turn_id for end in ends(engine.effects)] == ["a", "b"]


def test_a_prompt_that_has_no_room_beside_its_adapter_is_refused() -> None:
    engine = Engine(new_core(4))
    effects = engine.submit(turn_on("a", "x", list(range(1, 9))))
    (delta,) = deltas(effects)
    assert delta.code == "context_length_exceeded"
    assert "has 8 tokens; this worker takes 7 beside its adapter" in delta.message
    assert not deltas(engine.submit(turn_on("b", "", list(range(1, 9)))))


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_an_adapter_that_fits_no_pool_is_refused_by_name(num_blocks: int) -> None:
    engine = Engine(new_core(num_blocks))
    (delta,) = deltas(engine.submit(turn_on("a", "x", [1])))
    assert delta.code == "adapter_too_large" and "adapter x" in delta.message
    assert f"takes 2 blocks; the KV pool of this worker has {num_blocks}" in delta.message


def test_an_adapter_that_cannot_be_made_costs_its_own_turns_only() -> None:
    engine = Engine()
    engine.submit(turn_on("a", "x"))
    for pause_ns in PAUSES_NS:
        assert engine.plan() is None
        build(engine, is_good=False)
        assert engine.plan() is None, "it is not tried again before its time"
        assert engine.core.next_deadline_ns() == (engine.now_ns + pause_ns if pause_ns else None)
        engine.now_ns += pause_ns
    assert engine.plan() is None and not deltas(engine.effects)
    build(engine, is_good=False)
    engine.submit(turn_on("b", ""))
    assert names(engine.step()) == ["b"]
    (said,) = [each for each in deltas(engine.effects) if each.turn_id == "a"]
    assert said.code == "adapter_unavailable"
    assert not engine.core.adapters.images
    check_integrity(engine.core)
    engine.submit(turn_on("c", "x"))  # tried anew
    engine.step()
    build(engine)
    assert "c" in names(engine.step())


def test_one_that_is_tried_again_later_holds_no_place_of_others() -> None:
    engine = Engine(new_core(64))
    for number in range(AHEAD_MAX):
        engine.submit(turn_on(f"t{number}", f"x{number}"))
    for _ in range(2):
        engine.plan()
        for made in of_kind(engine.effects, BuildImage)[-AHEAD_MAX:]:
            engine.keep(engine.core.on_loaded([], made.pool_pages, engine.now_ns))
    engine.plan()
    engine.submit(turn_on("b", "y"))
    engine.plan()
    build(engine)
    assert names(engine.step()) == ["b"]
    for number in range(AHEAD_MAX):
        engine.keep(engine.core.on_cancel(TurnId(f"t{number}")))
    assert engine.core.next_deadline_ns() is None, "nobody waits for them any more"


def test_failures_that_were_overcome_are_not_counted() -> None:
    """Else an adapter that somebody always wants would be given up after the third of its life."""
    engine = Engine()
    engine.submit(turn_on("a", "x"))
    assert engine.plan() is None
    build(engine, is_good=False)
    assert engine.plan() is None
    image = engine.core.adapters.images["x"]
    assert image.num_failures == 1
    build(engine)
    assert names(engine.step()) == ["a"]
    assert image.users and image.num_failures == 0


def test_a_bad_load_is_built_instead() -> None:
    engine = connected()
    engine.submit(turn_on("a", "x"))
    answer(engine, of_kind(engine.effects, StageImage)[0])
    engine.plan()
    engine.load_all(engine.effects, is_good=False)
    assert engine.plan() is None
    build(engine)
    assert names(engine.step()) == ["a"]
    check_integrity(engine.core)


def test_what_fails_of_the_last_try_does_not_fail_the_next() -> None:
    """One page is bad, the others are still on their way, and turn out bad as well."""
    engine = connected()
    engine.submit(turn_on("a", "x"))
    answer(engine, of_kind(engine.effects, StageImage)[0])
    assert engine.plan() is None
    pages = [
        page for loads in of_kind(engine.effects, LoadPages)[-1].loads for page in loads.pool_pages
    ]
    engine.keep(engine.core.on_loaded([], pages[1:2], engine.now_ns))
    assert engine.plan() is None
    assert not of_kind(engine.effects, BuildImage)
    engine.keep(engine.core.on_loaded([], [pages[0], *pages[2:]], engine.now_ns))
    assert engine.plan() is None
    build(engine)
    assert names(engine.step()) == ["a"]
    assert engine.core.adapters.stats.num_failures == 1
    check_integrity(engine.core)


def test_an_answer_for_a_turn_that_left_is_let_go() -> None:
    engine = connected()
    turn = turn_on("a", "x")
    engine.submit(turn)
    (asked,) = of_kind(engine.effects, StageImage)
    engine.keep(engine.core.on_cancel(turn.request.turn_id))
    answer(engine, asked, ticket=3)
    assert ReleaseTicket(3) in engine.effects
    check_integrity(engine.core)


def test_an_answer_that_is_overdue_is_not_waited_for() -> None:
    engine = connected()
    engine.submit(turn_on("a", "x"))
    (asked,) = of_kind(engine.effects, StageImage)
    assert engine.plan() is None
    due_at_ns = engine.core.next_deadline_ns()
    assert due_at_ns is not None
    engine.now_ns = due_at_ns
    assert engine.plan() is None
    build(engine)
    answer(engine, asked, ticket=4)
    assert ReleaseTicket(4) in engine.effects
    assert names(engine.step()) == ["a"]


def test_only_the_adapters_of_the_next_turns_are_asked_for() -> None:
    engine = connected(64, turns_running_max=1)
    engine.submit(turn_on("first", ""))
    engine.step()
    for number in range(AHEAD_MAX + 5):
        engine.submit(turn_on(f"t{number}", f"x{number}"))
    assert len(of_kind(engine.effects, StageImage)) == AHEAD_MAX


def test_an_image_that_nobody_runs_on_stays_until_its_pages_are_needed() -> None:
    engine = Engine(new_core(6))
    engine.submit(turn_on("a", "x"))
    engine.plan()
    build(engine)
    while engine.core.turns:
        engine.step()
    assert engine.core.adapters.resident() == ["x"]
    engine.submit(turn_on("b", "x"))
    engine.step()
    assert len(of_kind(engine.effects, BuildImage)) == 1
    while engine.core.turns:
        engine.step()
    engine.run(new_turn("c", list(range(1, 20)), sampling=limited(2)))
    assert engine.core.adapters.resident() == []


def announce(engine: Engine, name: str, num_blocks: int, expires_at_ns: int) -> None:
    fields = {"adapter": adapter(name), "num_image_blocks": num_blocks}
    engine.keep(announce_turn(engine, SessionId("s"), expires_at_ns=expires_at_ns, **fields))


def test_an_announced_adapter_comes_into_pages_that_nobody_needs() -> None:
    engine = connected()
    announce(engine, "x", BLOCKS, 1000 * MS)
    answer(engine, of_kind(engine.effects, StageImage)[0])
    engine.load_all(engine.effects)
    assert not engine.core.adapters.images and engine.core.pool.num_takeable == BLOCKS * NUM_LAYERS
    engine.submit(turn_on("a", "x"))
    assert names(engine.step()) == ["a"], "it is there"
    assert len(of_kind(engine.effects, StageImage)) == 1


def test_an_announced_adapter_that_nobody_has_is_built_and_let_go() -> None:
    engine = connected()
    announce(engine, "x", BLOCKS, 1000 * MS)
    answer(engine, of_kind(engine.effects, StageImage)[0], has_all=False)
    assert engine.core.adapters.images["x"].is_wished
    build(engine)
    assert not engine.core.adapters.images
    check_integrity(engine.core)
    engine.submit(turn_on("a", "x"))
    assert names(engine.step()) == ["a"]
    assert len(of_kind(engine.effects, BuildImage)) == 1


def test_an_announced_adapter_takes_nothing_from_anybody() -> None:
    engine = Engine(new_core(4))
    engine.submit(turn_on("a", "", list(range(1, 12))))
    engine.step()
    engine.core.write_behind.connect(1)
    announce(engine, "x", BLOCKS, 1000 * MS)
    answer(engine, of_kind(engine.effects, StageImage)[0], has_all=False)
    assert not engine.core.adapters.images and not of_kind(engine.effects, BuildImage)


def test_a_build_for_an_announced_turn_serves_it_when_it_comes() -> None:
    for is_good in (True, False):
        engine = connected()
        announce(engine, "x", BLOCKS, 1000 * MS)
        answer(engine, of_kind(engine.effects, StageImage)[0], has_all=False)
        engine.submit(turn_on("a", "x"))
        build(engine, is_good=is_good)
        if not is_good:
            assert engine.plan() is None
            build(engine)
        assert names(engine.step()) == ["a"]
        check_integrity(engine.core)


def first_layer(engine: Engine) -> LoadPages:
    """Let what was ordered last come as far as the first layer; what is left of it."""
    order = of_kind(engine.effects, LoadPages)[-1]
    assert [loads.layer for loads in order.loads] == list(range(NUM_LAYERS))
    engine.now_ns += MS // 10
    engine.load_all([LoadPages(order.loads[:1])])
    return LoadPages(order.loads[1:])


def streaming(
    step_ns: int = 20 * MS, lora_start: LoraStart = "auto", num_from_disk: int = 0
) -> Engine:
    """A turn `a` on the adapter `x`, whose image is staged and on its way."""
    engine = Engine(new_core(lora_start=lora_start))
    engine.core.write_behind.connect(1)
    teach(engine, step_ns)
    engine.submit(turn_on("a", "x"))
    answer(engine, of_kind(engine.effects, StageImage)[0], num_from_disk=num_from_disk)
    assert engine.plan() is None, "not even its first layer is here"
    return engine


def starts(engine: Engine) -> list[str]:
    return [start for start, _ in engine.core.adapters.stats.first_tokens]


@pytest.mark.parametrize("num_from_disk", [0, 2])
def test_a_pass_begins_with_the_first_layer_where_the_others_keep_up(num_from_disk: int) -> None:
    engine = streaming(num_from_disk=num_from_disk)
    rest = first_layer(engine)
    plan = engine.plan()
    assert plan is not None and plan.adapters.tolist() == [0]
    assert plan.streams == {0: [[], rest.loads[0].pool_pages]}
    assert plan.alone(0).streams == plan.streams
    engine.load_all([rest])
    later = engine.plan()
    assert later is not None and not later.streams
    engine.finish(plan)
    engine.finish(later)
    assert starts(engine) == ["streamed"]
    check_integrity(engine.core)


REASONS = "short pass", "slow link", "slow disk", "unknown speed", "setting", "ahead"


@pytest.mark.parametrize("reason", REASONS)
def test_it_waits_for_all_where_the_others_would_be_late(reason: str) -> None:
    engine = streaming(
        1000 if reason == "short pass" else 20 * MS,
        "wait" if reason == "setting" else "auto",
        num_from_disk=4 if reason == "slow disk" else 0,
    )
    if reason == "slow disk":
        engine.now_ns += 100 * MS
    if reason == "slow link":
        engine.core.estimates.load_bytes_per_s = 1e5
    if reason == "unknown speed":
        engine.core.costs._tokens = 0
    if reason == "ahead":
        engine.core.estimates.load_bytes_per_s = 1.5e6  # two of its pages take a seventh of a pass
        engine.submit(turn_on("b", "y", blocks=8))
        answer(engine, of_kind(engine.effects, StageImage)[1], ticket=8)
        engine.load_all([LoadPages(of_kind(engine.effects, LoadPages)[0].loads[:1])])
        rest = LoadPages(of_kind(engine.effects, LoadPages)[0].loads[1:])
    else:
        rest = first_layer(engine)
    assert engine.plan() is None
    engine.load_all([rest])
    plan = engine.plan()
    assert plan is not None and not plan.streams
    engine.finish(plan)
    assert starts(engine) == ["waited"]


@pytest.mark.parametrize("comes", ["late", "damaged"])
def test_a_layer_that_does_not_come_costs_its_own_turn_a_wait(comes: str) -> None:
    engine = streaming()
    engine.submit(turn_on("b", ""))
    rest = first_layer(engine)
    plan = engine.plan()
    assert plan is not None and names(plan.rows()) == ["b", "a"]
    if comes == "damaged":
        engine.load_all([rest], is_good=False)
    engine.finish(plan, failed={1})
    assert [delta.turn_id for delta in deltas(engine.effects)] == ["b"]
    assert names(engine.step()) == ["b"], "nobody begins on it again before all of it is here"
    if comes == "late":
        engine.load_all([rest])
        assert not any(block.is_late for block in engine.core.pool.blocks.values())
    else:
        build(engine)
    assert names(engine.step()) == ["a"]
    assert starts(engine) == ["waited"]
    check_integrity(engine.core)


def test_nobody_waits_in_a_pass_for_what_was_late_for_another() -> None:
    """A turn that ends with its first token, and one in the step behind it, which goes on."""
    engine = streaming()
    turn = engine.core.turns[TurnId("a")]
    turn.length_max = turn.num_prompt + 1
    rest = first_layer(engine)
    first = engine.plan()
    engine.submit(turn_on("b", "x"))
    second = engine.plan()
    assert first is not None and second is not None and second.turn_ids == ["b"]
    engine.finish(first, failed={0})
    assert engine.plan() is None
    engine.load_all([rest])
    engine.finish(second)
    assert sorted(names(engine.step())) == ["a", "b"]
    assert starts(engine) == ["streamed", "waited"]


def test_nobody_takes_a_damaged_image_from_those_that_run_on_it() -> None:
    """A turn that ends with its first token, and one in the step behind it, when the adapter's
    second layer turns out bad."""
    engine = streaming()
    turn = engine.core.turns[TurnId("a")]
    turn.length_max = turn.num_prompt + 1
    rest = first_layer(engine)
    first = engine.plan()
    engine.submit(turn_on("b", "x"))
    second = engine.plan()
    assert first is not None and second is not None and second.turn_ids == ["b"]
    engine.load_all([rest], is_good=False)
    engine.finish(first, failed={0})
    chain = engine.core.adapters.images["x"].chain
    blocks = list(chain.blocks)
    assert engine.plan() is None
    assert chain.blocks == blocks, "a step in flight reads their pages"
    engine.finish(second, failed={0})
    assert engine.plan() is None
    build(engine)
    assert sorted(names(engine.step())) == ["a", "b"]
    check_integrity(engine.core)


def assisted(
    num_from_disk: int = 0, lora_start: LoraStart = "auto", assist_tokens: int = 8
) -> Engine:
    """A turn of three tokens on an adapter of which nothing is here but that is in the arena."""
    engine = Engine(new_core(lora_start=lora_start))
    engine.core.write_behind.connect(1)
    engine.core.adapters.loading.start_modes.assist_tokens = assist_tokens
    engine.submit(turn_on("a", "x"))
    answer(engine, of_kind(engine.effects, StageImage)[0], num_from_disk=num_from_disk)
    return engine


def test_with_helpers_a_turn_begins_before_anything_is_here() -> None:
    engine = assisted()
    order = of_kind(engine.effects, LoadPages)[-1]
    plan = engine.plan()
    assert plan is not None and plan.adapters.tolist() == [0]
    assert plan.streams == {0: [loads.pool_pages for loads in order.loads]}
    source = plan.assists[0]
    assert source.pages == [loads.arena_pages for loads in order.loads]
    assert source.generations == [loads.generations for loads in order.loads]
    assert source.epoch == 1 and plan.alone(0).assists == plan.assists
    engine.load_all([order])
    assert not of_kind(engine.effects, ReleaseTicket), "a step in flight reads the arena"
    later = engine.plan()
    assert later is not None and not (later.streams or later.assists)
    engine.finish(plan)
    assert of_kind(engine.effects, ReleaseTicket) == [ReleaseTicket(7)]
    engine.finish(later)
    assert starts(engine) == ["assisted"]
    check_integrity(engine.core)


@pytest.mark.parametrize("reason", ["disk", "stream", "wait", "none", "long", "head", "together"])
def test_where_helpers_are_of_no_use_it_waits(reason: str) -> None:
    if reason in {"head", "together"}:
        engine = Engine(new_core())
        engine.core.write_behind.connect(1)
        engine.core.adapters.loading.start_modes.assist_tokens = 5
        turns = [turn_on(name, of) for name, of in (("a", "x"), ("b", "y"))]
        turns[0].adapter.can_be_assisted = reason == "together"
        for turn in turns if reason == "together" else turns[:1]:
            engine.submit(turn)
        for number, asked in enumerate(of_kind(engine.effects, StageImage)):
            answer(engine, asked, ticket=7 + number)
    else:
        engine = assisted(
            num_from_disk=1 if reason == "disk" else 0,
            lora_start="stream" if reason == "stream" else "wait" if reason == "wait" else "auto",
            assist_tokens=0 if reason == "none" else 2 if reason == "long" else 8,
        )
    plan = engine.plan()
    if reason == "together":
        assert plan is not None and plan.turn_ids == ["a"], "one fills what helpers can take"
    else:
        assert plan is None


@pytest.mark.parametrize("lora_start", ["auto", "assist"])
def test_helpers_that_take_longer_than_the_load_are_left_alone(lora_start: LoraStart) -> None:
    engine = Engine(new_core(lora_start=lora_start))
    engine.core.write_behind.connect(1)
    ways = engine.core.adapters.loading.start_modes
    ways.assist_tokens = 8
    engine.core.estimates.load_bytes_per_s = 1e6  # four pages take 4 ms
    ways.assists.add(3, 5 * MS)
    engine.submit(turn_on("a", "x"))
    answer(engine, of_kind(engine.effects, StageImage)[0])
    plan = engine.plan()
    assert (plan is None) == (lora_start == "auto")
    if plan is None:
        ways.assists = Line()
        ways.assists.add(3, 3 * MS)
        assert engine.plan() is not None


@pytest.mark.parametrize("is_faster", [True, False])
def test_helpers_are_left_alone_where_streaming_gives_the_first_token_sooner(
    is_faster: bool,
) -> None:
    engine = Engine(new_core())
    engine.core.write_behind.connect(1)
    teach(engine, 20 * MS)
    modes = engine.core.adapters.loading.start_modes
    modes.assist_tokens = 8
    engine.core.estimates.load_bytes_per_s = 1e6  # its first layer takes 2 ms, all of it 4 ms
    modes.assists.add(3, (1 if is_faster else 3) * MS)
    engine.submit(turn_on("a", "x"))
    answer(engine, of_kind(engine.effects, StageImage)[0])
    plan = engine.plan()
    if is_faster:
        assert plan is not None and plan.assists
        return
    assert plan is None
    rest = first_layer(engine)
    plan = engine.plan()
    assert plan is not None and plan.streams == {0: [[], rest.loads[0].pool_pages]}
    engine.load_all([rest])
    engine.finish(plan)
    assert starts(engine) == ["streamed"]


def test_helpers_that_were_slow_are_tried_again_now_and_then() -> None:
    ways = StartModes(assist_tokens=8)
    ways.assists.add(3, 5 * MS)
    tried = [ways.can_assist(3, MS, was_refused=False) for _ in range(3 * TRY_AGAIN)]
    assert sum(tried) == 3 and not any(tried[: TRY_AGAIN - 1])


def test_helpers_that_were_slow_are_not_tried_again_because_one_turn_waits_for_long() -> None:
    engine = Engine(new_core())
    engine.core.write_behind.connect(1)
    modes = engine.core.adapters.loading.start_modes
    modes.assist_tokens = 8
    engine.core.estimates.load_bytes_per_s = 1e6  # four pages take 4 ms
    modes.assists.add(3, 5 * MS)
    engine.submit(turn_on("a", "x"))
    answer(engine, of_kind(engine.effects, StageImage)[0])
    assert not any(engine.plan() for _ in range(2 * TRY_AGAIN))
    tried = [modes.can_assist(3, MS, was_refused=False) for _ in range(TRY_AGAIN - 1)]
    assert tried == [False] * (TRY_AGAIN - 2) + [True], "it counts as one"


def test_it_learns_what_helpers_take() -> None:
    engine = assisted()
    plan = engine.plan()
    assert plan is not None
    engine.finish(plan, assist_ns=2 * MS)
    assert engine.core.adapters.loading.start_modes.assists.at(3) == 2 * MS


def test_where_helpers_fail_its_turn_waits_for_all_of_it() -> None:
    engine = assisted()
    order = of_kind(engine.effects, LoadPages)[-1]
    plan = engine.plan()
    assert plan is not None
    engine.finish(plan, failed={0})
    assert engine.plan() is None, "what was late once is not waited for in a pass"
    engine.load_all([order])
    assert names(engine.step()) == ["a"]
    assert starts(engine) == ["waited"]
    check_integrity(engine.core)


def test_a_turn_that_comes_again_while_its_first_copy_leaves_keeps_its_adapter() -> None:
    """A start that was told twice, the second time behind the turn's end."""
    engine = Engine()
    engine.submit(turn_on("a", "x"))
    assert engine.plan() is None
    build(engine)
    plan = engine.plan()
    assert plan is not None
    engine.keep(engine.core.on_cancel(TurnId("a")))
    engine.submit(turn_on("a", "x"))
    engine.finish(plan)
    check_integrity(engine.core)
    while engine.core.turns:
        engine.step()
    assert [end.reason for end in ends(engine.effects)] == ["cancelled", "length"]
    assert not engine.core.adapters.images


def test_nobody_begins_on_an_image_of_which_part_has_no_pages() -> None:
    """Its first block comes for an announced turn, and there was no room yet for its second."""
    engine = Engine(new_core(3))
    engine.core.write_behind.connect(1)
    teach(engine, 20 * MS)
    engine.submit(turn_on("b", ""))
    assert names(engine.step()) == ["b"]
    expires_at_ns = engine.now_ns + 1000 * MS
    announce(engine, "x", 1, expires_at_ns)
    answer(engine, of_kind(engine.effects, StageImage)[-1])
    order = of_kind(engine.effects, LoadPages)[-1]
    engine.submit(turn_on("a", "x"))
    answer(engine, of_kind(engine.effects, StageImage)[-1], ticket=8)
    chain = engine.core.adapters.images["x"].chain
    assert chain.coming and chain.missing
    engine.load_all([LoadPages(order.loads[:1])])
    last = engine.plan()
    assert last is not None and last.turn_ids == ["b"]
    engine.finish(last)
    assert engine.plan() is None
    engine.load_all([LoadPages(order.loads[1:])])
    assert engine.plan() is None, "its second block is ordered now"
    engine.load_all([of_kind(engine.effects, LoadPages)[-1]])
    assert names(engine.step()) == ["a"]


def test_many_begin_while_their_adapters_come() -> None:
    """That the seeds below stream, and meet layers that are late."""
    num_streamed = num_late = 0
    for seed in range(20):
        engine = Engine(new_core(7))
        engine.core.write_behind.connect(1)
        teach(engine, 100 * MS)
        play = Play(engine, random.Random(seed), bad_share=0.1)
        for number in range(20):
            engine.submit(turn_on(f"t{number}", "uvwxyz"[number % 6], [1, 2], blocks=2))
        play.finish()
        num_streamed += play.num_streamed
        num_late += play.num_late
    assert num_streamed > 10 and num_late > 5


@pytest.mark.parametrize(
    "seed", [*range(50), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(50, 150))]
)
def test_everybody_is_served_whatever_comes_late_or_not_at_all(seed: int) -> None:
    """Some thirty turns on six adapters in a pool that holds two or three of them."""
    dice = random.Random(seed)
    engine = Engine(new_core(dice.choice([7, 9, 12]), turns_running_max=dice.choice([1, 2, 5])))
    if dice.random() < 0.8:
        engine.core.write_behind.connect(1)
    if dice.random() < 0.8:
        teach(engine, dice.choice([20, 100]) * MS)
    engine.core.adapters.loading.start_modes.assist_tokens = dice.choice([0, 8, 100])
    play = Play(engine, dice, bad_share=0.1)
    for number in range(30):
        of = dice.choice(["", "u", "v", "w", "x", "y", "z"])
        tokens = [dice.randrange(1, 9) for _ in range(dice.randrange(1, 16))]
        blocks = 1 + "uvwxyz".find(of) % 3
        turn = turn_on(f"t{number}", of, tokens, blocks=blocks, priority=dice.randrange(2))
        if of and dice.random() < 0.2:
            expires_at_ns = engine.now_ns + dice.randrange(500) * MS
            announce(engine, of, blocks, expires_at_ns)
        engine.submit(turn)
        if dice.random() < 0.5:
            play.go_on(dice.randrange(4))
        if dice.random() < 0.1:
            engine.keep(engine.core.on_cancel(turn.request.turn_id))
    play.finish()
    reasons = {end.turn_id: end.reason for end in ends(engine.effects)}
    assert len(reasons) == 30
    assert not engine.core.adapters.images, "an image has users, and there are none"
    assert sorted(engine.core.adapters._lines) == list(range(engine.core.queue.running_max))
    held = [block for block in engine.core.pool.blocks.values() if block.refs]
    assert not held, "a block is in use, and nobody is there"


@dataclass
class Play:
    """Lets loads, builds, answers and steps end in any order.

    Attributes:
        bad_share: of those that end badly.
        pending: what the shell is at.
        here: pages whose bytes came since they were ordered last.
        num_streamed: rows that began while their adapter came; and those it came too late for.
    """

    engine: Engine
    dice: random.Random
    bad_share: float
    pending: list[Effect] = field(default_factory=list)
    flights: list[StepPlan] = field(default_factory=list)
    num_seen: int = 0
    here: set[int] = field(default_factory=set)
    num_streamed: int = 0
    num_late: int = 0

    def go_on(self, num_moves: int) -> None:
        """So many things happen, unless all turns are over before."""
        for _ in range(num_moves):
            self._take_orders()
            check_integrity(self.engine.core)
            if not (self.engine.core.turns or self.flights or self.pending):
                return
            self._move()

    def finish(self) -> None:
        """Until nothing is left to happen."""
        self.go_on(3000)
        assert not self.engine.core.turns, "somebody waits for ever"

    def _take_orders(self) -> None:
        kinds = (StageImage, StageTurn, BuildImage, LoadPages, StoreBlocks)
        new = self.engine.effects[self.num_seen :]
        self.num_seen += len(new)
        self.pending += [each for each in new if isinstance(each, kinds)]
        for each in of_kind(new, LoadPages):
            self.here -= {page for loads in each.loads for page in loads.pool_pages}

    def _move(self) -> None:
        engine, core, dice = self.engine, self.engine.core, self.dice
        engine.now_ns += dice.randrange(20) * MS
        if self.pending and dice.random() < 0.6:
            order = self.pending.pop(dice.randrange(len(self.pending)))
            if isinstance(order, LoadPages) and len(order.loads) > 1:  # layer by layer
                self.pending.append(LoadPages(order.loads[1:]))
                order = LoadPages(order.loads[:1])
            _end(engine, order, dice, self.bad_share, self.here)
        elif self.flights and dice.random() < 0.6:
            plan = self.flights.pop(0)
            engine.finish(plan, failed=self._late(plan))
        elif len(self.flights) < 2 and (planned := engine.plan()) is not None:
            _check_plan(core.flights[-1].turns, planned)
            self.flights.append(planned)
        elif not (self.pending or self.flights) and (due_at_ns := core.next_deadline_ns()):
            engine.now_ns = max(engine.now_ns, due_at_ns)

    def _late(self, plan: StepPlan) -> set[int]:
        """Rows whose adapter is not here by now."""
        late = set()
        for line, layers in plan.streams.items():
            rows = [row for row, own in enumerate(plan.adapters.tolist()) if own == line]
            self.num_streamed += len(rows)
            if line in plan.assists and self.dice.random() < 0.8:
                continue
            if not self.here.issuperset(page for layer in layers for page in layer):
                late.update(rows)
        self.num_late += len(late)
        return late


def teach(engine: Engine, step_ns: int) -> None:
    """Let it know how long its steps take."""
    engine.step_ns = step_ns
    for _ in range(10):
        engine.core.costs.on_step(0, 1, step_ns)
    engine.core.costs.on_step(1000, 0, step_ns)


def _check_plan(turns: list[Turn], plan: StepPlan) -> None:
    for turn, line in zip(turns, plan.adapters.tolist(), strict=True):
        assert (line == NO_LINE) == (turn.adapter.ref is None)
        if turn.adapter.image is not None:
            assert turn.adapter.image.line == line and turn.adapter.image.is_reported
            assert not turn.adapter.image.chain.missing
            loading = turn.adapter.image.chain.coming
            assert not (loading and turn.adapter.image.built), "what is built comes as a whole"
            assert (line in plan.streams) == any(block.loading for block in loading)


def _end(
    engine: Engine, effect: Effect, dice: random.Random, bad_share: float, here: set[int]
) -> None:
    core, is_good = engine.core, dice.random() >= bad_share
    match effect:
        case StageImage():
            staged = staged_blocks(1000 + effect.number, effect.keys if dice.random() < 0.5 else [])
            engine.keep(
                core.on_image_staged(effect.number, staged if is_good else None, engine.now_ns)
            )
        case StageTurn():
            engine.keep(core.on_staged(effect.turn_id, effect.attempt, None, engine.now_ns))
        case BuildImage():
            pages = effect.pool_pages
            good, bad = (pages, []) if is_good else ([], pages)
            engine.keep(core.on_loaded(good, bad, engine.now_ns))
        case LoadPages():
            engine.load_all([effect], is_good=is_good)
            pages = [page for loads in effect.loads for page in loads.pool_pages]
            here.update(pages if is_good else [])
        case StoreBlocks():
            sums = {write.number: [0] * NUM_LAYERS if is_good else [] for write in effect.writes}
            for commit in of_kind(engine.keep(core.on_stored(sums)), CommitBlocks):
                core.on_committed([write.key for write in commit.writes])


def test_what_loads_took_lately_is_reported() -> None:
    engine = Engine(new_core())
    stats = engine.core.adapters.stats
    assert engine.core.speeds("m").adapter_load_ms == 0.0, "not known"
    stats.on_loaded("files", 80 * MS)
    assert engine.core.speeds("m").adapter_load_ms == 80.0
    stats.on_loaded("kvstore", 8 * MS)
    assert engine.core.speeds("m").adapter_load_ms == 71.0, "one does not decide"
    for _ in range(100):
        stats.on_loaded("kvstore", 8 * MS)
    assert engine.core.speeds("m").adapter_load_ms == pytest.approx(8.0, abs=0.1)
