"""Rotary embeddings as tables of all positions, so that a kernel finds a token's own in them."""

from collections.abc import Callable

import torch

from kernels.pointwise import Rotary

TABLE_BYTES_MAX = 512 << 20
POSITIONS_AT_ONCE = 1 << 14

Embed = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class RotaryTable:
    """Cosines and sines of every position; on a CPU float32, which its kernel is compiled for.

    Args:
        short: of positions ``[1, P]``, cosines and sines ``[1, P, R]``.
        long: of those of sequences that count as long (see `ModelInfo.short_rope_max`); None: all
            sequences have the same.
        num_positions: that a model is served for.
    """

    def __init__(
        self, short: Embed, long: Embed | None, num_positions: int, device: torch.device
    ) -> None:
        self._num_positions = num_positions
        self._is_two = long is not None
        parts = [_table(each, num_positions, device) for each in (short, long) if each is not None]
        self.cos = torch.cat([cos for cos, _ in parts])
        self.sin = torch.cat([sin for _, sin in parts])

    def at(self, positions: torch.Tensor, is_long: torch.Tensor | None) -> Rotary:
        """What new tokens need.

        Args:
            positions: int64 ``[T]``.
            is_long: bool ``[T]``; None: none is.
        """
        rows = positions
        if self._is_two and is_long is not None:
            rows = positions + is_long * self._num_positions
        return Rotary(self.cos, self.sin, rows)


def fits(num_positions: int, cos: torch.Tensor) -> bool:
    """Whether tables of so many positions, of cosines like these, are small enough."""
    element = 4 if cos.device.type == "cpu" else cos.element_size()
    return 4 * num_positions * cos.shape[-1] * element <= TABLE_BYTES_MAX


def _table(
    embed: Embed, num_positions: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    pieces = []
    for start in range(0, num_positions, POSITIONS_AT_ONCE):
        end = min(start + POSITIONS_AT_ONCE, num_positions)
        cos, sin = embed(torch.arange(start, end, device=device)[None])
        pieces.append((cos[0], sin[0]))
    cos, sin = (torch.cat(parts).contiguous() for parts in zip(*pieces, strict=True))
    return (cos.float(), sin.float()) if device.type == "cpu" else (cos, sin)
