"""Runs step plans on a GPU, so that the host is ahead of it: nothing is read back before a step is
over, and nothing is done row by row or layer by layer that the device can do at once.

A launch uploads what is new in one copy, fills in carried tokens from what the step before chose,
runs the model (decodes alone as a recorded launch), chooses tokens and starts reading them back.
The parts that are CUDA's come from outside, so that all the rest runs on any torch device.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from kernels.paged_attention import DeviceBatch, RaggedBatch
from services.worker.core.adapters.image import NO_LINE
from services.worker.core.step import Ints, RowSampling, StepPlan
from services.worker.device.assist.stream_assistance import stream_assist
from services.worker.device.assist.stream_crew import StreamCrew
from services.worker.device.base.step import StepContext, running
from services.worker.device.base.tables import Failures
from services.worker.device.base.upload import ReadBack, upload
from services.worker.device.copying.copies import PageCopier
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.image_builder import ImageBuilder
from services.worker.device.copying.mover import KvMover, Moved
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.gpu.decode_graphs import DecodeGraphs, DecodeInputs, Forward
from services.worker.device.gpu.device_tables import DeviceTables
from services.worker.device.gpu.launched import GpuLaunched, Pass, StepChosen
from services.worker.device.grammar import Grammars, Masks, Vocabulary, asked_of
from services.worker.device.lora.tables import DeviceLines
from services.worker.device.sampling.batch_sampler import NO_CARRIED, Chosen, choose
from services.worker.device.sampling.sampler import top_logprobs, wanted_logits
from shared.blocks import BLOCK_TOKENS

PREFILL_TOKENS = 4096
SPARE_PAGE = -1  # the pool's last page, which belongs to no turn: padding writes there


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """A plan's numbers on the device, with the carried tokens filled in.

    Attributes:
        sampled_at: places, in the logits, of the rows that choose a token.
        before: of each of those, its carried token or `NO_CARRIED`.
        back: the same being copied to the host, where a grammar asks for it.
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
    sampled_at: torch.Tensor
    sampled_slots: torch.Tensor
    before: torch.Tensor
    back: ReadBack | None
    adapters: list[torch.Tensor] | None


@dataclass(frozen=True, slots=True)
class DeviceApi:
    """What is the device's own.

    Attributes:
        make_copier: for the pool.
        record: makes of a launch one that is repeated by a call; None: launch again every time.
    """

    make_copier: Callable[[torch.Tensor], PageCopier]
    record: Callable[[Forward], Forward] | None


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
        self._graphs = self._lora_graphs = None
        record = api.record
        if record is not None:
            self._graphs = DecodeGraphs(turns_max, self._device, self._decode, record)
            if self._lora is not None:
                on_adapters = partial(self._decode, lora=self._lora)
                self._lora_graphs = DecodeGraphs(turns_max, self._device, on_adapters, record)

    def launch(self, plan: StepPlan) -> GpuLaunched:
        passed = Pass(time.monotonic_ns(), self._failures.void(plan), [0] * self.info.num_layers)
        with torch.inference_mode():
            inputs = self._upload_inputs(plan)
            with self._helpers(plan, passed):
                logits = self._logits(plan, inputs, passed)
                chosen = self._choose(plan, inputs, logits, self._masks(plan, inputs, passed))
        self._failures.keep(plan, passed.failed)
        return GpuLaunched(plan, passed, chosen, self.mover.gate, self._started_at_ns)

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
        """Record what is launched again and again."""
        for graphs in (self._graphs, self._lora_graphs):
            if graphs is not None:
                with torch.inference_mode():
                    graphs.record_all()

    # Before the pass.

    def _upload_inputs(self, plan: StepPlan) -> DeviceInputs:
        entries = plan.entries
        self._tables.check(entries)
        if self._lora is not None:
            self._lora.enter(plan.images)
        rows = [index for index, each in enumerate(plan.sampling) if each is not None]
        wanted = wanted_logits(plan)
        is_on_adapters = self._lora is not None and bool((plan.adapters != NO_LINE).any())
        adapter_inputs: list[Ints] = []
        if is_on_adapters and self._lora is not None:
            adapter_inputs = self._lora.inputs(plan, wanted)
        (
            tokens, token_slots, positions, starts, lens, slots, at, sampled, sampled_slots,
            sampled_last, are_carried, carried_at, carried_slots, are_long, to_slots, to_blocks,
            pages, *adapters,
        ) = upload(
            [*_arrays(plan, rows, wanted), *adapter_inputs], self._device
        )  # fmt: skip
        if len(entries.slots):
            self._tables.enter(to_slots, to_blocks, pages)
        if len(plan.carried):
            tokens[carried_at] = self._tables.latest[carried_slots]
        before = torch.where(are_carried.bool(), tokens[sampled_last], NO_CARRIED)
        return DeviceInputs(
            tokens, positions.long(), are_long.bool() if len(plan.long) else None, token_slots,
            starts, lens, slots, at, sampled, sampled_slots, before,
            ReadBack([before]) if _has_grammar(plan) else None, adapters or None,
        )  # fmt: skip

    # The pass.

    def _logits(self, plan: StepPlan, inputs: DeviceInputs, passed: Pass) -> torch.Tensor:
        graphs = self._graphs if inputs.adapters is None else self._lora_graphs
        if graphs is None or not _is_plain(plan):
            return self._forward(plan, inputs, passed)
        if inputs.adapters is not None and self._lora is not None:
            self._lora.fill_decodes(inputs.adapters)
        return graphs.run(inputs.tokens, inputs.positions, inputs.slots, inputs.context_lens)

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

    def _forward(self, plan: StepPlan, inputs: DeviceInputs, passed: Pass) -> torch.Tensor:
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
            awaited=plan.awaited,
            due_in_ns=partial(plan.due_in_ns, num_layers=self.info.num_layers),
            streams=plan.streams,
            lines=plan.adapters.tolist(),
            has=self.mover.gate.has_started,
            wait=partial(self._run_behind, passed.behind),
            stall_ns=passed.stall_ns,
            stall_at_ns=passed.stall_at_ns,
            failed=passed.failed,
            lora=self._lora.step(plan, inputs.adapters) if self._lora and inputs.adapters else None,
            assistance=passed.assistance,
        )
        return self._run(step, inputs.tokens.long(), inputs.wanted)

    def _decode(self, inputs: DecodeInputs, lora: DeviceLines | None = None) -> torch.Tensor:
        """A step of decodes whose history is there, to be recorded; logits of every row."""
        positions, slots = inputs.positions, inputs.slots
        on_device = DeviceBatch(
            inputs.query_starts, inputs.context_lens, slots, len(slots), 1, self.info.max_model_len
        )
        pages = self._tables.pages[:, slots, positions // BLOCK_TOKENS]
        step = StepContext(
            pool=self._pool,
            batch=RaggedBatch([], [], [], self._tables.pages, on_device),
            slot_pages=torch.where(inputs.context_lens > 0, pages, SPARE_PAGE),
            slot_offsets=(positions % BLOCK_TOKENS).int(),
            positions=positions,
            is_long=self._are_long(inputs.context_lens),
            lora=None if lora is None else lora.decode(len(slots)),
        )
        return self._run(step, inputs.tokens, 0)

    def _are_long(self, context_lens: torch.Tensor) -> torch.Tensor | None:
        """Of decodes, which have all tokens of their sequences, whether those are long."""
        length = self.info.short_rope_max
        return context_lens > length if length else None

    def _run(self, step: StepContext, tokens: torch.Tensor, wanted: object) -> torch.Tensor:
        with running(step):
            logits: torch.Tensor = self._model.module(
                tokens[None],
                position_ids=step.positions[None],
                use_cache=False,
                logits_to_keep=wanted,
            ).logits[0]
        return logits

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

    def _masks(self, plan: StepPlan, inputs: DeviceInputs, passed: Pass) -> Masks:
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
        self, plan: StepPlan, inputs: DeviceInputs, logits: torch.Tensor, masks: Masks
    ) -> StepChosen:
        rows = [index for index, each in enumerate(plan.sampling) if each is not None]
        asked: list[RowSampling] = [each for each in plan.sampling if each is not None]
        own = logits[inputs.sampled_at]
        chosen = Chosen(inputs.before, inputs.before)
        if rows:
            ready = {at: masks.ready[row] for at, row in enumerate(rows) if row in masks.ready}
            chosen = choose(own, asked, inputs.before, self.info.end_token_ids, ready)
            self._tables.latest[inputs.sampled_slots] = chosen.tokens
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


def _is_plain(plan: StepPlan) -> bool:
    """Whether it is one token a row, each followed by a choice, on what is there."""
    is_short = plan.num_tokens == plan.num_rows
    awaits = plan.awaited or plan.streams
    return is_short and None not in plan.sampling and not awaits and not plan.scoring


def _arrays(plan: StepPlan, rows: list[int], wanted: list[int]) -> list[Ints]:
    """What a device needs of a plan, in the order of `GpuExecutor._upload_inputs`.

    Args:
        rows: those that choose a token.
        wanted: see `wanted_logits`.
    """
    place = {token: index for index, token in enumerate(wanted)}
    last = plan.query_starts[1:] - 1
    is_carried = np.isin(np.arange(plan.num_rows), plan.carried)
    return [
        plan.tokens,
        np.repeat(plan.slots, plan.lengths),
        plan.positions(),
        plan.query_starts,
        plan.context_lens,
        plan.slots,
        np.array(wanted, np.int32),
        np.array([place[int(last[row])] for row in rows], np.int32),
        plan.slots[rows],
        last[rows],
        is_carried[rows].astype(np.int32),
        last[plan.carried],
        plan.slots[plan.carried],
        plan.are_long().astype(np.int32) if len(plan.long) else plan.long,
        plan.entries.slots,
        plan.entries.blocks,
        plan.entries.pages,
    ]
