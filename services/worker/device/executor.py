"""The one interface behind which a forward pass happens, on a CPU, a GPU, or not at all."""

from dataclasses import dataclass, field
from typing import Protocol

from services.worker.core.step import StepPlan, StepResult
from services.worker.device.copying.mover import KvMover
from services.worker.device.grammar import Grammars
from services.worker.device.image_builder import ImageBuilder
from shared.messages import LoraCard, SamplingDefaults


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
    short_rope_max: int = 0


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


class Executor(Protocol):
    """Runs plans in their order. One thread launches them, another one may wait for their ends.

    Attributes:
        info: the model it runs.
        prefill_tokens_max: prompt tokens it likes to take in one step.
        mover: moves KV between its pool and the arena.
        builder: makes adapters' images in its pool.
        grammars: walks the grammars that turns are held to.
        assist_tokens: new tokens of a step that helpers can take now; 0: there are none.
    """

    info: ModelInfo
    prefill_tokens_max: int
    mover: KvMover
    builder: ImageBuilder
    grammars: Grammars

    @property
    def assist_tokens(self) -> int: ...

    def launch(self, plan: StepPlan) -> Launched:
        """Compute the plan's rows behind those that were launched before."""
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
