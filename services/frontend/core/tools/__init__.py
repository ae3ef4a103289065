"""Calls of tools in what a model says: which text is one, by how its family writes them."""

from services.frontend.core.tools.families import (
    FAMILIES,
    Argued,
    Called,
    Event,
    Family,
    Said,
    family_of,
)
from services.frontend.core.tools.parser import ToolParser

__all__ = ["FAMILIES", "Argued", "Called", "Event", "Family", "Said", "ToolParser", "family_of"]
