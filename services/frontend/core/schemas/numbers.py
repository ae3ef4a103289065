"""Numbers in schemas, as far as the grammar's library is exact about them."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fractions import Fraction
from typing import Any

from services.frontend.core.schemas.places import Place

EXACT = 2**53  # whole numbers to here are exact as floats, which the library computes with
BOUND_MAX = 2**63 - 1024  # the largest float that its whole numbers go to
FRACTION_DIGITS_MAX = 17  # of a bound, behind the point
STEPS_MAX = 100_000  # states of an automaton that counts a number's remainder
DIGITS_MAX = 15  # that the library reads exactly


class Multiples:
    """All ``multipleOf`` of a schema: where parts apply together, so do these, and cost as much as
    their least common multiple."""

    def __init__(self) -> None:
        self._found: list[tuple[Place, Fraction]] = []

    def add(self, place: Place, value: float) -> None:
        """One more.

        Raises:
            SchemaError: it takes too many steps.
        """
        step = Fraction(str(value))
        if _coefficient(step) > STEPS_MAX:
            raise place.error(f"more than {STEPS_MAX} steps", "multipleOf")
        if not _is_exact(value):
            raise place.error("this number has no exact digits", "multipleOf")
        self._found.append((place, step))

    def check(self) -> None:
        """Refuse those that would cost too much together.

        Raises:
            SchemaError: they do.
        """
        whole = Fraction(1)
        for place, step in self._found:
            whole = _lcm(whole, step)
            if _coefficient(whole) > STEPS_MAX:
                why = f"more than {STEPS_MAX} steps together with the others"
                raise place.error(why, "multipleOf")


def with_bounds(place: Place, *, is_whole: bool) -> dict[str, Any]:
    """Bounds and steps of a number, as the library is exact about them: never wider than given.

    Args:
        is_whole: the number has to be.

    Raises:
        SchemaError: nothing may be left between them, or they cannot be held.
    """
    node, made = place.node, dict[str, Any]()
    least, most = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    # Draft 4 has true there, of the other one.
    least, above = (None, least) if above is True else (least, None if above is False else above)
    most, below = (None, most) if below is True else (most, None if below is False else below)
    for name, other, value in (
        ("minimum", "", least), ("exclusiveMinimum", "minimum", above),
        ("maximum", "", most), ("exclusiveMaximum", "maximum", below),
    ):  # fmt: skip
        if value is not None:
            is_low = "inimum" in name
            inner = _within(place, name, value, is_low=is_low)
            is_inner = inner >= 0 if is_low else inner <= 0
            if not is_whole and is_inner and name.startswith("ex") and inner == int(inner):
                made.setdefault(other, _beside(inner, is_low=is_low))
                made[other] = (max if is_low else min)(made[other], _beside(inner, is_low=is_low))
            else:
                made[name] = inner
    if "multipleOf" in node:
        made["multipleOf"] = node["multipleOf"]
    return made


def check_literal(place: Place, name: str, value: Any) -> None:
    """See that a value can be written as it is.

    Raises:
        SchemaError: it has a number that the library would round.
    """
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, int) and abs(each) > EXACT:
            raise place.error("a whole number beyond 2^53 cannot be held", name)
        elif isinstance(each, float) and abs(each) > EXACT and each != int(each):
            raise place.error("this number cannot be held", name)


def _within(place: Place, name: str, value: float, *, is_low: bool) -> float:
    """A bound that the library is exact about, at the given one or further in."""
    if abs(value) > BOUND_MAX:
        if (value < 0) is not is_low:
            raise place.error(f"a bound beyond {BOUND_MAX} on this side cannot be held", name)
        return -BOUND_MAX if is_low else BOUND_MAX
    if isinstance(value, int) and abs(value) > EXACT:
        near = float(value)
        if near != value and (near < value) is is_low:
            near = math.nextafter(near, math.inf if is_low else -math.inf)
        return int(near)
    if isinstance(value, int) or value == int(value):
        return int(value)
    digits = Context(DIGITS_MAX, ROUND_CEILING if is_low else ROUND_FLOOR).create_decimal(
        str(value)
    )
    exponent = digits.normalize().as_tuple().exponent
    if not isinstance(exponent, int) or -exponent > FRACTION_DIGITS_MAX:
        raise place.error(f"more than {FRACTION_DIGITS_MAX} digits cannot be held", name)
    return float(digits)


def _beside(value: float, *, is_low: bool) -> float:
    """A number beside a whole bound that is excluded, on its far side from zero. The library takes
    the bound itself where the other one has the same whole part."""
    whole = abs(int(value))
    num_digits = DIGITS_MAX - len(str(whole))
    far = float(f"{whole}.{'1':0>{num_digits}}") if num_digits > 0 else whole + 1
    return far if is_low else -far


def _is_exact(value: float) -> bool:
    """Whether the library reads all digits of a number: it multiplies by ten till none is left."""
    value, digits = abs(float(value)), 0
    while value != math.floor(value):
        value, digits = value * 10, digits + 1
        if digits > DIGITS_MAX:
            return False
    return value < 2**32 or digits == 0


def _coefficient(step: Fraction) -> int:
    """Digits of a step, without its decimal point."""
    digits = 0
    while step.denominator != 1 and digits < 400:
        step, digits = step * 10, digits + 1
    return step.numerator


def _lcm(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))
