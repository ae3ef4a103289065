"""Numbers that bound how sub-clusters change."""

from dataclasses import dataclass

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SubclusterLimits:
    """Durations in ns, shares in [0, 1].

    Attributes:
        changed_share_max: of the workers, how many may be changed within `window_ns`; one may be
            where that is less than one. Loading into an empty worker is no change.
        window_ns: also how long after its start a scheduler changes nothing: an earlier one may
            have used up the share.
        learning_ns: after the start, until the workers' reports are known.
        forget_ns: loads this old weigh 1/e of new ones.
        gain_min: how much larger the least spare capacity must become for a worker to move, in
            standard deviations of a sub-cluster's load.
        repartition_ns: between two looks at which models belong together.
        uneven_max: models move once a sub-cluster's load is off the average by more than this
            share of it, and `even_min` of that can be won.
        idle_load: with less load, in workers, a model that is placed leaves where memory lacks for
            one with more. Loads are known `window_ns` after the start.
        missing_ns: between two looks at models with load that are not placed.
        repeat_ns: an order is sent again after this, until the worker reports that it is done.
        memory_share: of a worker's memory that a partition may use; the rest takes new models.
        models_max: more are not placed.
    """

    changed_share_max: float = 0.05
    window_ns: int = 60 * SECOND_NS
    learning_ns: int = 2 * SECOND_NS
    forget_ns: int = 60 * SECOND_NS
    gain_min: float = 0.1
    repartition_ns: int = 300 * SECOND_NS
    uneven_max: float = 1.0
    even_min: float = 0.25
    idle_load: float = 0.001
    missing_ns: int = 10 * SECOND_NS
    repeat_ns: int = 2 * SECOND_NS
    memory_share: float = 0.9
    models_max: int = 2000
