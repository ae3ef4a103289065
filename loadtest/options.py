"""Options that several benchmarks have."""

from shared.errors import InvalidRequest


def numbers(option: str, text: str, least: int = 1) -> list[int]:
    """What ``--option 1,8,32`` gives.

    Raises:
        InvalidRequest: it is no such list, or a number is below `least`.

    >>> numbers("batch", "1,8")
    [1, 8]
    """
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise InvalidRequest(f"--{option} {text}: use numbers with commas between") from None
    if min(found) < least:
        raise InvalidRequest(f"--{option} {text}: use numbers from {least} on")
    return found
