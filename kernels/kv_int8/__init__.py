"""Pages of KV as int8 with a scale for each channel, and back: half of bf16, a quarter of float32.

A channel is one place of one head's keys, or of its values, over the tokens of a page: keys have
channels that are large in every token (KIVI, section 3), so that one scale for all would leave the
others no digits.

    scale = greatest |x| of the channel / 127, rounded up to 17 bits
    code = round(x / scale), to even
    x' = code * scale, rounded to the kind of x

The product is exact in float32, and the greatest element comes back as it was, in float32 but for
2^-16 of it: so what was rounded once has the same scales and codes when it is rounded again, and on
every device. An element is off by at most half a scale, and by what its own kind rounds to.

A stored page is the codes ``[rows, block_tokens, head_dim]`` and behind them the scales ``[rows,
head_dim]``, float32, where the rows are the keys of every head and then the values. A channel that
has a number of 2^127 or more, or none at all (NaN), has an infinite scale: such a page is of no
use.
"""
