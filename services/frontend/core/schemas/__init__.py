"""JSON schemas of requests: what can be held in a grammar, and by which schema."""

from services.frontend.core.schemas.openness import is_open
from services.frontend.core.schemas.places import Place, Schema, SchemaError
from services.frontend.core.schemas.rewriting import parts_of, rewritten

__all__ = ["Place", "Schema", "SchemaError", "is_open", "parts_of", "rewritten"]
