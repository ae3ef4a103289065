"""Calls of tools in what a model says: which text is one, by how its family writes them."""

from services.frontend.core.tools.calls import Argued, Called, Event, Said
from services.frontend.core.tools.families import FAMILIES, Family, family_of
from services.frontend.core.tools.parser import ToolParser

__all__ = ["FAMILIES", "Argued", "Called", "Event", "Family", "Said", "ToolParser", "family_of"]
