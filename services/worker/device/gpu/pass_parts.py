"""What is launched for one kind of pass, over that kind's own memory: to be recorded."""

from dataclasses import dataclass, replace
from functools import partial

import torch

from kernels.paged_attention import DeviceBatch, RaggedBatch
from kernels.sgmv import DeviceSegments
from services.worker.device.base.step import LoraStep, StepContext
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.forward import Decoder
from services.worker.device.gpu.device_tables import DeviceTables
from services.worker.device.gpu.pass_inputs import PassInputs, PassKind, make_inputs
from services.worker.device.gpu.recordings import PassPart, RecordedPass
from services.worker.device.lora.tables import DeviceLines

# Groups of layers in a pass whose pages are loading: what is computed behind the last page is this
# share of a pass, and each costs a launch.
GROUPS = 8


@dataclass(frozen=True, slots=True)
class PassMaker:
    """Makes passes of one model.

    Attributes:
        pool: pages of KV.
        tables: pages of running turns.
        lora: adapters of running turns; None: the model takes none.
        rows_max: of a pass.
    """

    model: LoadedModel
    pool: torch.Tensor
    tables: DeviceTables
    lora: DeviceLines | None
    rows_max: int

    def make(self, kind: PassKind) -> RecordedPass:
        """Its parts are launched kernel by kernel."""
        inputs = make_inputs(kind, self.rows_max, self.model.num_layers, self.model.device)
        step = self._step(inputs)
        if not kind.is_cut:
            launch = partial(self._whole, inputs, step)
            return RecordedPass(inputs, step, [PassPart(range(self.model.num_layers), launch)])
        forward = self.model.forward
        assert isinstance(forward, Decoder), "only a decoder of our own can be cut"
        return RecordedPass(inputs, step, self._groups(forward, inputs, step))

    def _step(self, inputs: PassInputs) -> StepContext:
        numbers, kind = inputs.numbers, inputs.kind
        batch = DeviceBatch(
            numbers.query_starts,
            numbers.context_lens,
            numbers.slots,
            num_decodes=inputs.rows if kind.is_decode else 0,
            query_len_max=1 if kind.is_decode else 0,
            context_len_max=self.model.max_model_len,
            is_packed=not kind.is_decode,
        )
        lora = self.lora
        return StepContext(
            pool=self.pool,
            batch=RaggedBatch([], [], [], self.tables.pages, batch),
            slot_pages=inputs.slot_pages,
            slot_offsets=inputs.slot_offsets,
            positions=inputs.positions,
            is_long=inputs.is_long if self.model.short_rope_max else None,
            lora=None if lora is None or not kind.rank else _adapters(lora, inputs),
        )

    def _whole(self, inputs: PassInputs, step: StepContext) -> torch.Tensor:
        inputs.prepare(self.tables)
        wanted = None if inputs.kind.is_decode else inputs.wanted
        return self.model.forward(replace(step, attended=set()), inputs.tokens, wanted)

    def _groups(self, forward: Decoder, inputs: PassInputs, step: StepContext) -> list[PassPart]:
        """Parts that hand the stream on in memory of their own."""
        num_layers = self.model.num_layers
        size = -(-num_layers // GROUPS)
        starts = range(0, num_layers, size)
        stream, x = (each.clone() for each in forward.embed(inputs.tokens))

        def launch(layers: range) -> torch.Tensor:
            if layers.start == 0:
                inputs.prepare(self.tables)
                begun = forward.embed(inputs.tokens)
            else:
                begun = stream, x
            is_last = layers.stop == num_layers
            ended = forward.run(step, layers, *begun, inputs.wanted if is_last else None)
            if is_last:
                return forward.logits(step, ended[1])
            if ended[0] is not stream:
                stream.copy_(ended[0])
            x.copy_(ended[1])
            return x

        return [
            PassPart(layers, partial(launch, layers))
            for layers in (range(at, min(at + size, num_layers)) for at in starts)
        ]


def _adapters(lora: DeviceLines, inputs: PassInputs) -> LoraStep:
    numbers = inputs.numbers
    return lora.recorded(
        DeviceSegments(numbers.lora_starts, numbers.lora_lines),
        DeviceSegments(numbers.last_starts, numbers.last_lines),
        inputs.kind.rank,
    )
