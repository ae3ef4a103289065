"""Which part of a house is simulated: a run's time goes by its users, so of many a part stands for
all.
"""

from dataclasses import dataclass

USERS_MAX = 400  # of a part
GPUS_LEAST = 2  # of one; else nothing would be seen of uneven load


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Attributes:
    users, gpus: of the part.
    gpus_per_host: of each of its hosts.
    host_share: of a host that each of them is: of its memory, its disk and its link.
    """

    users: int
    gpus: int
    gpus_per_host: int
    host_share: float


def part_of(users: int, gpus: int, gpus_per_host: int, users_max: int = USERS_MAX) -> Part:
    """A part with as many users a GPU as the whole.

    >>> part_of(users=100, gpus=3, gpus_per_host=4)
    Part(users=100, gpus=3, gpus_per_host=3, host_share=1.0)
    >>> part_of(users=6400, gpus=16, gpus_per_host=8)
    Part(users=800, gpus=2, gpus_per_host=2, host_share=0.25)
    """
    num_gpus = min(gpus, max(gpus * users_max // users, GPUS_LEAST))
    in_house, in_part = min(gpus, gpus_per_host), min(num_gpus, gpus_per_host)
    if num_gpus > in_part:  # whole hosts
        num_gpus -= num_gpus % in_part
    return Part(
        users=max(round(users * num_gpus / gpus), 1),
        gpus=num_gpus,
        gpus_per_host=in_part,
        host_share=in_part / in_house,
    )
