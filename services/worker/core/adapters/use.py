"""What a turn and its adapter have to do with each other."""

from dataclasses import dataclass

from services.worker.core.adapters.image import Image
from services.worker.core.adapters.stats import Start
from shared.wire.messages import AdapterRef


@dataclass(slots=True, eq=False)
class AdapterUse:
    """One turn's use of an adapter, or of the base model.

    Attributes:
        ref: the adapter; None: the turn runs on the base model.
        num_image_blocks: of the adapter's image.
        can_be_assisted: helpers can compute all that the adapter adds.
        image: the adapter's, here or loading; shared with other turns.
        start: how the turn came to its adapter, as far as is known.
    """

    ref: AdapterRef | None = None
    num_image_blocks: int = 0
    can_be_assisted: bool = False
    image: Image | None = None
    start: Start = "waited"
