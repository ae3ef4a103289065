"""Runs step plans on a GPU, so that the host is ahead of it: nothing is read back before a step is
over, and nothing is done row by row or layer by layer that the device can do at once.

A launch uploads what is new in one copy, fills in carried tokens from what the step before chose,
runs the model (as a recorded pass, where it is no large one), chooses tokens and starts reading
them back.
The parts that are CUDA's come from outside, so that all the rest runs on any torch device.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from kernels.paged_attention import DeviceBatch, RaggedBatch
from services.worker.core.adapters.image import NO_LINE
from services.worker.core.step import Ints, RowSampling, StepPlan
from services.worker.device.assist.stream_assistance import stream_assist
from services.worker.device.assist.stream_crew import StreamCrew
from services.worker.device.base.step import StepContext
from services.worker.device.base.tables import Failures
from services.worker.device.base.upload import ReadBack, upload
from services.worker.device.copying.copies import PageCopier
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.image_builder import ImageBuilder
from services.worker.device.copying.mover import KvMover, Moved
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.forward import Decoder
from services.worker.device.gpu.device_tables import DeviceTables
from services.worker.device.gpu.launched import GpuLaunched, Pass, StepChosen
from services.worker.device.gpu.pass_inputs import NO_SLOT, pack
from services.worker.device.gpu.pass_parts import PassMaker
from services.worker.device.gpu.recordings import RecordedPass, Recorder, Recordings
from services.worker.device.grammar import Grammars, Masks, Vocabulary, asked_of
from services.worker.device.lora.tables import DeviceLines
from services.worker.device.sampling.batch_sampler import NO_CARRIED, Chosen, choose
from services.worker.device.sampling.sampler import top_logprobs, wanted_logits
from shared.blocks import BLOCK_TOKENS

PREFILL_TOKENS = 4096
# Recorded before the worker serves, so that no turn waits for what they compile: a decode, and a
# pass of any kind.
WARM_UP_PASSES = 2


@dataclass(frozen=True, slots=True)
class ChoiceInputs:
    """What choosing tokens needs of a plan, on the device.

    Attributes:
        sampled_at: places, in the logits, of the rows that choose a token.
        slots: of those rows.
        before: of each of those, its carried token or `NO_CARRIED`.
        back: the same being copied to the host, where a grammar asks for it.
    """

    sampled_at: torch.Tensor
    slots: torch.Tensor
    before: torch.Tensor
    back: ReadBack | None


@dataclass(frozen=True, slots=True)
class EagerInputs:
    """What a pass that is not recorded needs of a plan, on the device, carried tokens filled in.

    Attributes:
        is_long: see `StepContext`.
        adapters: see `DeviceLines.inputs`; None: all rows are the base model's.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    is_long: torch.Tensor | None
    token_slots: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    slots: torch.Tensor
    wanted: torch.Tensor
    adapters: list[torch.Tensor] | None


@dataclass(frozen=True, slots=True)
class DeviceApi:
    """What is the device's own.

    Attributes:
        make_copier: for the pool.
        recorder: None: everything is launched kernel by kernel, every time.
    """

    make_copier: Callable[[torch.Tensor], PageCopier]
    recorder: Recorder | None


class GpuExecutor:
    """A loaded model with its page pool and its mover.

    Args:
        num_pages: pool size; ``num_pages * page_bytes`` bytes of device memory.
        turns_max: turns in one step.
        api: of the device.
        on_moved: see `KvMover`.
        crew: helpers for adapters that are not in the pool; closed with this.
    """

    def __init__(
        self,
        model: LoadedModel,
        model_id: str,
        num_pages: int,
        turns_max: int,
        api: DeviceApi,
        on_moved: Callable[[Moved], None],
        crew: StreamCrew | None = None,
    ) -> None:
        self._crew = crew
        self._model = model
        self._device = model.device
        self.prefill_tokens_max = PREFILL_TOKENS
        self.info = model.info(model_id, num_pages)
        self._pool = model.make_pool(num_pages + 1)
        num_blocks = -(-model.max_model_len // BLOCK_TOKENS)
        self._tables = DeviceTables(model.num_layers, turns_max, num_blocks, self._device)
        self.copier = api.make_copier(self._pool)
        gate = PageGate(num_pages)
        self.mover = KvMover(self.copier, gate, on_moved, reader=crew, token_rows=model.token_rows)
        self.builder = ImageBuilder(model.read_image, self.copier, gate, on_moved)
        info = self.info
        self.grammars = Grammars(Vocabulary(info.source, info.vocab_size, info.end_token_ids))
        self._lora = None
        if model.lora is not None:
            self._lora = DeviceLines(model.lora, turns_max, self._device)
        self._failures = Failures()
        self._ended_at_ns = 0
        self._recordings = None
        if api.recorder is not None:
            maker = PassMaker(model, self._pool, self._tables, self._lora, turns_max)
            can_cut = isinstance(model.forward, Decoder)
            self._recordings = Recordings(turns_max, maker.make, api.recorder, can_cut)

    def launch(self, plan: StepPlan) -> GpuLaunched:
        passed = Pass(time.monotonic_ns(), self._failures.void(plan), [0] * self.info.num_layers)
        with torch.inference_mode():
            self._enter_adapters(plan)
            recorded = self._recorded(plan, passed)
            wanted = wanted_logits(plan)
            if recorded is None:
                choice, inputs = self._upload_all(plan, wanted)
                with self._helpers(plan, passed):
                    logits = self._eager(plan, inputs, passed)
                    chosen = self._choose(plan, choice, logits, self._masks(plan, choice, passed))
            else:
                choice, packed = self._upload_packed(plan, wanted, recorded)
                logits = recorded.run(packed, self._awaiting(plan, recorded, passed))
                chosen = self._choose(plan, choice, logits, self._masks(plan, choice, passed))
        self._failures.keep(plan, passed.failed)
        return GpuLaunched(plan, passed, chosen, self.mover.gate, self._started_at_ns)

    @property
    def num_unrecorded(self) -> int:
        return 0 if self._recordings is None else self._recordings.num_left

    def record_next(self) -> None:
        if self._recordings is not None:
            with torch.inference_mode():
                is_good = self._recordings.record_next()
            if not is_good:
                self.check_device()

    @property
    def assist_tokens(self) -> int:
        return 0 if self._crew is None else self._crew.num_tokens

    def check_device(self) -> None:
        self.mover.check()
        if self._crew is not None:
            self._crew.check()
        one = torch.ones(1, device=self._device)
        assert (one + one).item() == 2.0, "the device miscounts"

    def close(self) -> None:
        self.grammars.close()
        self.builder.close()
        self.mover.close()
        if self._crew is not None:
            self._crew.close()

    def warm_up(self) -> None:
        """Compile what the first steps run on."""
        for _ in range(min(self.num_unrecorded, WARM_UP_PASSES)):
            self.record_next()

    # Before the pass.

    def _enter_adapters(self, plan: StepPlan) -> None:
        self._tables.check(plan.entries)
        if self._lora is not None:
            self._lora.enter(plan.images)

    def _recorded(self, plan: StepPlan, passed: Pass) -> RecordedPass | None:
        if self._recordings is None:
            return None
        found = self._recordings.find(plan, 0 if self._lora is None else self._lora.rank_of(plan))
        if isinstance(found, RecordedPass):
            return found
        passed.unrecorded = found
        return None

    def _upload_packed(
        self, plan: StepPlan, wanted: list[int], recorded: RecordedPass
    ) -> tuple[ChoiceInputs, torch.Tensor]:
        inputs = recorded.inputs
        packed = pack(plan, wanted, inputs.kind, inputs.rows)
        *arrays, there = upload([*_choice_arrays(plan, wanted), packed], self._device)
        return self._enter(plan, arrays), there

    def _upload_all(self, plan: StepPlan, wanted: list[int]) -> tuple[ChoiceInputs, EagerInputs]:
        of_choice = _choice_arrays(plan, wanted)
        adapters: list[Ints] = []
        if self._lora is not None and bool((plan.adapters != NO_LINE).any()):
            adapters = self._lora.inputs(plan, wanted)
        there = upload([*of_choice, *_eager_arrays(plan, wanted), *adapters], self._device)
        choice = self._enter(plan, there[: len(of_choice)])
        (
            tokens, token_slots, positions, starts, lens, slots, at, carried_at, carried_slots,
            are_long, *on_adapters,
        ) = there[len(of_choice) :]  # fmt: skip
        if len(plan.carried):
            tokens[carried_at] = self._tables.latest[carried_slots]
        return choice, EagerInputs(
            tokens, positions.long(), are_long.bool() if len(plan.long) else None, token_slots,
            starts, lens, slots, at, on_adapters or None,
        )  # fmt: skip

    def _enter(self, plan: StepPlan, arrays: list[torch.Tensor]) -> ChoiceInputs:
        """Make the entries of the tables, and see which tokens are carried."""
        sampled, slots, carried, to_slots, to_blocks, pages = arrays
        if len(plan.entries.slots):
            self._tables.enter(to_slots, to_blocks, pages)
        before = torch.where(carried >= 0, self._tables.latest[carried.clamp(min=0)], NO_CARRIED)
        return ChoiceInputs(
            sampled, slots, before, ReadBack([before]) if _has_grammar(plan) else None
        )

    # The pass.

    def _awaiting(
        self, plan: StepPlan, recorded: RecordedPass, passed: Pass
    ) -> Callable[[range], None]:
        """Has what is launched next run behind the copies of pages that these layers read."""
        if not plan.awaited and not plan.streams:
            return lambda layers: None
        step = self._with_waits(recorded.step, plan, passed)

        def wait(layers: range) -> None:
            for layer in layers:
                step.await_history(layer)
                step.await_adapters([layer])

        return wait

    def _with_waits(self, step: StepContext, plan: StepPlan, passed: Pass) -> StepContext:
        return replace(
            step,
            awaited=plan.awaited,
            due_in_ns=partial(plan.due_in_ns, num_layers=self.info.num_layers),
            begun_ns=time.monotonic_ns(),
            streams=plan.streams,
            lines=plan.adapters.tolist(),
            has=self.mover.gate.has_started,
            wait=partial(self._run_behind, passed.behind),
            stall_ns=passed.stall_ns,
            stall_at_ns=passed.stall_at_ns,
            failed=passed.failed,
            assistance=passed.assistance,
        )

    @contextmanager
    def _helpers(self, plan: StepPlan, passed: Pass) -> Iterator[None]:
        """Have helpers in a launch that wants some, if there are any. They are with its pass until
        its result was waited for."""
        if not plan.assists or self._crew is None or self._lora is None:
            yield
            return
        passed.assistance = stream_assist(self._crew, plan, self._lora.images, self._device)
        try:
            yield
        except BaseException:
            if passed.assistance is not None:
                passed.assistance.abandon()
            raise

    def _eager(self, plan: StepPlan, inputs: EagerInputs, passed: Pass) -> torch.Tensor:
        """Any step, launched kernel by kernel; logits of what is wanted."""
        lengths = plan.lengths
        is_chunk = lengths != 1
        num_decodes = int(is_chunk.argmax()) if is_chunk.any() else plan.num_rows
        on_device = DeviceBatch(
            inputs.query_starts,
            inputs.context_lens,
            inputs.slots,
            num_decodes,
            int(lengths.max()),
            int(plan.context_lens.max()),
        )
        batch = RaggedBatch(
            plan.query_starts.tolist(),
            plan.context_lens.tolist(),
            plan.slots.tolist(),
            self._tables.pages,
            on_device,
        )
        blocks = inputs.positions // BLOCK_TOKENS
        step = StepContext(
            pool=self._pool,
            batch=batch,
            slot_pages=self._tables.pages[:, inputs.token_slots, blocks],
            slot_offsets=(inputs.positions % BLOCK_TOKENS).int(),
            positions=inputs.positions,
            is_long=inputs.is_long,
            lora=self._lora.step(plan, inputs.adapters) if self._lora and inputs.adapters else None,
        )
        step = self._with_waits(step, plan, passed)
        return self._model.forward(step, inputs.tokens.long(), inputs.wanted)

    def _run_behind(self, behind: set[int], pages: list[int], timeout_ns: int) -> bool:
        """Let what is launched next run behind the copies into these pages, if they begin in
        time.

        Args:
            behind: pages whose bytes are to be looked at when the pass is over: added to.
        """
        copies = self.mover.gate.wait_started(pages, timeout_ns)
        if copies is None:
            return False
        self.copier.hold(copies)
        behind.update(pages)
        return True

    # Behind the pass.

    def _masks(self, plan: StepPlan, inputs: ChoiceInputs, passed: Pass) -> Masks:
        """What grammars allow each row that is held to one. They follow the tokens that the step
        before chose, so that is waited for, and no more: the device has this pass to run by then.
        """
        if inputs.back is None:
            return Masks()
        (before,) = inputs.back.wait()
        sampled = [(row, each) for row, each in enumerate(plan.sampling) if each is not None]
        rows = [
            (row, sampling if token == NO_CARRIED else sampling.after(token))
            for (row, sampling), token in zip(sampled, before.tolist(), strict=True)
            if row not in passed.failed
        ]
        masks = self.grammars.begin(asked_of(plan, rows))
        masks.wait()
        passed.failed |= masks.late
        return masks

    def _choose(
        self, plan: StepPlan, inputs: ChoiceInputs, logits: torch.Tensor, masks: Masks
    ) -> StepChosen:
        rows = [index for index, each in enumerate(plan.sampling) if each is not None]
        asked: list[RowSampling] = [each for each in plan.sampling if each is not None]
        own = logits[inputs.sampled_at]
        chosen = Chosen(inputs.before, inputs.before)
        if rows:
            ready = {at: masks.ready[row] for at, row in enumerate(rows) if row in masks.ready}
            chosen = choose(own, asked, inputs.before, self.info.end_token_ids, ready)
            self._tables.latest[inputs.slots] = chosen.tokens
        back = ReadBack([chosen.tokens, chosen.largest])
        made = StepChosen(rows, back, refused=masks.failed)
        for index, (row, sampling) in enumerate(zip(rows, asked, strict=True)):
            if (num_top := sampling.params.logprobs) is not None:
                token = chosen.tokens[index : index + 1]
                made.logprobs[row] = top_logprobs(own[index : index + 1], token, num_top)
        first = 0
        lengths: list[int] = plan.lengths.tolist()
        for row in range(plan.num_rows):
            if (scoring := plan.scoring.get(row)) is not None:
                count = len(scoring.targets)
                (targets,) = upload([np.array(scoring.targets, np.int32)], self._device)
                of = logits[first : first + count]
                made.scores[row] = top_logprobs(of, targets, scoring.num_top)
            first += lengths[row] if row in plan.scoring else plan.sampling[row] is not None
        return made

    def _started_at_ns(self, launched_at_ns: int, ended_at_ns: int) -> int:
        """When a step that has just ended began: when it was launched, or when the device was done
        with the one before. Called in the order of launches."""
        started_at_ns = max(launched_at_ns, self._ended_at_ns)
        self._ended_at_ns = ended_at_ns
        return started_at_ns


def _has_grammar(plan: StepPlan) -> bool:
    return any(each is not None and each.params.grammar for each in plan.sampling)


def _choice_arrays(plan: StepPlan, wanted: list[int]) -> list[Ints]:
    """What choosing tokens and entering tables need, in the order of `GpuExecutor._enter`."""
    rows = [index for index, each in enumerate(plan.sampling) if each is not None]
    place = {token: index for index, token in enumerate(wanted)}
    last = plan.query_starts[1:] - 1
    slots = plan.slots[rows]
    carried = np.full(plan.num_rows, NO_SLOT, np.int32)
    carried[plan.carried] = plan.slots[plan.carried]
    return [
        np.array([place[token] for token in last[rows].tolist()], np.int32),
        slots,
        carried[rows],
        plan.entries.slots,
        plan.entries.blocks,
        plan.entries.pages,
    ]


def _eager_arrays(plan: StepPlan, wanted: list[int]) -> list[Ints]:
    """What else a pass needs that is not recorded, in the order of `GpuExecutor._upload_all`."""
    return [
        plan.tokens,
        np.repeat(plan.slots, plan.lengths),
        plan.positions(),
        plan.query_starts,
        plan.context_lens,
        plan.slots,
        np.array(wanted, np.int32),
        plan.query_starts[plan.carried + 1] - 1,
        plan.slots[plan.carried],
        plan.are_long().astype(np.int32) if len(plan.long) else plan.long,
    ]
