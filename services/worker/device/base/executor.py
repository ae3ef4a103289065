"""The one interface behind which a forward pass happens, on a CPU, a GPU, or not at all."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from services.worker.core.effects import BlockWrite, BuildImage, PageLoads
from services.worker.core.step import StepPlan, StepResult
from services.worker.core.turns.intake import ModelShape
from shared.arena import Arena
from shared.wire.messages import LoraCard, SamplingDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A loaded model, as the engine and the world need to know it.

    Attributes:
        fingerprint: hash of weights, dtype and KV layout, in the pool and outside of it.
        page_bytes: KV of one block in one layer.
        stored_page_bytes: the same where it is stored outside of the pool.
        num_pages: pages that the device has room for.
        short_rope_max: tokens of the longest sequence that the model has short rotary frequencies
            for; a longer one has others at all its positions. 0: all sequences have the same.
        vocab_size: token ids that it can read and say.
        sampling: for requests that do not say how to sample.
        lora: what adapters it takes; None: none.
        image_card: by which their images lie in its pages; None: `lora`.
        takes_images: users' messages may have some.
    """

    model_id: str
    source: str
    fingerprint: str
    max_model_len: int
    num_layers: int
    page_bytes: int
    stored_page_bytes: int
    num_pages: int
    vocab_size: int
    end_token_ids: frozenset[int]
    block_tokens: int
    is_emulated: bool = False
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    lora: LoraCard | None = None
    image_card: LoraCard | None = None
    short_rope_max: int = 0
    takes_images: bool = False


def shape_of(info: ModelInfo) -> ModelShape:
    """What turns need to know of it."""
    return ModelShape(
        fingerprint=info.fingerprint,
        num_layers=info.num_layers,
        block_tokens=info.block_tokens,
        vocab_size=info.vocab_size,
        lora=info.image_card or info.lora,
        takes_images=info.takes_images,
    )


class Launched(Protocol):
    """A step that the device has been given."""

    def result(self) -> StepResult:
        """Wait until it is over."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A step that was over when it was launched."""

    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome


class Mover(Protocol):
    """Moves KV between the pool and the arena, as `KvMover` does."""

    def prepare(self, arena: Arena) -> None: ...

    def attach(self, arena: Arena, epoch: int) -> None: ...

    def detach(self) -> None: ...

    def submit_loads(self, loads: list[PageLoads]) -> None: ...

    def call_back(self, pool_pages: list[int]) -> None: ...

    def submit_stores(self, writes: list[BlockWrite], epoch: int) -> None: ...


class Builder(Protocol):
    """Makes adapters' images in the pool, as `ImageBuilder` does."""

    def submit(self, build: BuildImage, folder: str) -> None: ...


class GrammarCompiler(Protocol):
    """Compiles the grammars that turns are held to, as `Grammars` does."""

    def prepare(self, grammar: str, *, has_open_keys: bool = False) -> "Future[str]": ...


class RecordsNothing:
    """Part of an executor that launches every pass in the same way."""

    num_unrecorded = 0

    def record_next(self) -> None:
        """See `Executor`."""


class Executor(Protocol):
    """Runs plans in their order. One thread launches them, another one may wait for their ends.

    Attributes:
        info: the model it runs.
        prefill_tokens_max: prompt tokens that one step should have at most, by default.
        assist_tokens: new tokens of a step that helpers can take now; 0: there are none.
        num_unrecorded: kinds of passes that are to be recorded, so that each is launched at once.
    """

    info: ModelInfo
    prefill_tokens_max: int

    @property
    def mover(self) -> Mover: ...

    @property
    def builder(self) -> Builder: ...

    @property
    def grammars(self) -> GrammarCompiler: ...

    @property
    def assist_tokens(self) -> int: ...

    @property
    def num_unrecorded(self) -> int: ...

    def launch(self, plan: StepPlan) -> Launched:
        """Compute the plan's rows behind those that were launched before."""
        ...

    def record_next(self) -> None:
        """Record one kind of pass, which takes some 0.1 s."""
        ...

    def check_device(self) -> None:
        """After a failure, see that the device still computes.

        Raises:
            Exception: nothing can be computed on it any more.
        """
        ...

    def close(self) -> None:
        """Free what the executor holds."""
        ...
