"""Axes that several figures have."""

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

_STEPS = (1.0, 2.0, 5.0)


def doubling_x(axes: Axes) -> None:
    """An x axis on which batches, tokens or ranks lie that double, as plain numbers."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def log_y(axes: Axes) -> None:
    """A y axis of decades, with plain numbers at 1, 2, 5 of each."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=_STEPS))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def log_x(axes: Axes) -> None:
    """The same of an x axis."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=_STEPS))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
