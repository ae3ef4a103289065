"""Commands of `symphony` that measure, simulate and demonstrate; `registered` adds them to it."""
