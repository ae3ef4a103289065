"""Which part of a deployment is simulated: a run's time goes by its users and their history, so of
many a part stands for all.
"""

from dataclasses import dataclass

USERS_MAX, USERS_LEAST = 400, 200  # of a part, if there are as many
TOKENS_MAX = USERS_MAX * 4000  # of history that they have together, if more than the least
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


def users_of_part(context: int) -> int:
    """How many may be in a part, if each has so many tokens of history.

    >>> users_of_part(1000), users_of_part(5000), users_of_part(32_000)
    (400, 320, 200)
    """
    return max(min(TOKENS_MAX // context, USERS_MAX), USERS_LEAST)


def part_of(users: int, gpus: int, gpus_per_host: int, users_max: int) -> Part:
    """A part with as many users a GPU as the whole.

    >>> part_of(users=100, gpus=3, gpus_per_host=4, users_max=400)
    Part(users=100, gpus=3, gpus_per_host=3, host_share=1.0)
    >>> part_of(users=6400, gpus=16, gpus_per_host=8, users_max=400)
    Part(users=800, gpus=2, gpus_per_host=2, host_share=0.25)
    """
    num_gpus = min(gpus, max(gpus * users_max // users, GPUS_LEAST))
    in_house, in_part = min(gpus, gpus_per_host), min(num_gpus, gpus_per_host)
    if in_part < num_gpus < gpus:  # whole hosts
        num_gpus -= num_gpus % in_part
    return Part(
        users=max(round(users * num_gpus / gpus), 1),
        gpus=num_gpus,
        gpus_per_host=in_part,
        host_share=in_part / in_house,
    )
