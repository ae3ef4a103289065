"""How long KV outlives its last use where its tenant, or its own session, has set that."""

EXPIRY_S_MAX = 31_536_000  # a year
_PRECISE_BITS = 4
NS_PER_S = 1_000_000_000


def is_expiry_s(value: int) -> bool:
    """Whether a message may say so: seconds, or 0: as every tier has it."""
    return 0 <= value <= EXPIRY_S_MAX


def rounded_expiry_s(seconds: int) -> int:
    """So many seconds or up to an eighth more: of all values some 200 are left, so that what
    expires alike can be kept in one order.

    >>> [rounded_expiry_s(each) for each in (0, 15, 60, 3600, 86_400, 86_401)]
    [0, 15, 60, 3840, 90112, 90112]
    """
    shift = max(seconds.bit_length() - _PRECISE_BITS, 0)
    return -(-seconds >> shift) << shift


def is_rounded_expiry_s(value: int) -> bool:
    """Whether `rounded_expiry_s` may say so of what a message may say.

    >>> [is_rounded_expiry_s(each) for each in (0, 3840, EXPIRY_S_MAX, 1 << 25, 1 << 26)]
    [True, True, True, True, False]
    """
    return 0 <= value <= rounded_expiry_s(EXPIRY_S_MAX)


def expiry_ns(seconds: int) -> int:
    """In ns.

    >>> expiry_ns(2)
    2000000000
    """
    return seconds * NS_PER_S
