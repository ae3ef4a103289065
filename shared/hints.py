"""Numbers about announced turns that services agree on."""

# So long after its turn was expected nothing is held for a hint, however long it lives.
HINT_HOLD_NS = 120_000_000_000
