"""Pages as int8 by torch's own operations, on any device and of any kind of numbers."""

import torch

CODE_MAX = 127
SCALE_MIN = 2.0**-126  # the least number that has all its digits
GREATEST_BELOW = 2.0**127  # so that 127 scales are a number
SCALE_BYTES = 4
_SPARE_BITS = 0x7F  # of a float32's 24: what 127 times a scale needs


def stored_bytes(page: torch.Size) -> int:
    """Of a page ``[rows, block_tokens, head_dim]``."""
    rows, _, head_dim = page
    return page.numel() + rows * head_dim * SCALE_BYTES


def quantize(pages: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Pages as they are stored.

    Args:
        pages: ``[pages, rows, block_tokens, head_dim]``.
        num_tokens: of each page; what is behind them counts for nothing, and its codes are 0.

    Returns:
        uint8 ``[pages, stored_bytes]``.
    """
    values = pages[:, :, :num_tokens].float()
    scales = _scales(values.abs().amax(2))
    codes = torch.zeros(pages.shape, dtype=torch.int8, device=pages.device)
    codes[:, :, :num_tokens] = (values / scales[:, :, None]).round().to(torch.int8)
    parts = [codes.view(torch.uint8).flatten(1), scales.view(torch.uint8).flatten(1)]
    return torch.cat(parts, 1)


def dequantize(stored: torch.Tensor, page: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """The pages of such bytes.

    Args:
        stored: uint8 ``[pages, stored_bytes]``, contiguous.
        page: its shape, ``[rows, block_tokens, head_dim]``.

    Returns:
        ``[pages, rows, block_tokens, head_dim]``.
    """
    rows, _, head_dim = page
    codes = stored[:, : page.numel()].view(torch.int8).view(-1, *page)
    scales = stored[:, page.numel() :].view(torch.float32).view(-1, rows, 1, head_dim)
    return (codes.float() * scales).to(dtype)


def _scales(greatest: torch.Tensor) -> torch.Tensor:
    bits = (greatest / CODE_MAX).view(torch.int32)
    scales = ((bits + _SPARE_BITS) & ~_SPARE_BITS).view(torch.float32).clamp_min(SCALE_MIN)
    return torch.where(greatest < GREATEST_BELOW, scales, torch.inf)
