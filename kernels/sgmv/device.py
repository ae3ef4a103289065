"""Segments and tables in a device's own memory, with room for the largest batch.

A launch is chosen by their sizes alone, never by what they hold: recorded with one adapter, it is
right with as many as there is room for.
"""

from dataclasses import dataclass

import numpy as np
import torch

from kernels.sgmv.interface import NO_ADAPTER, TILE_FIELDS, AdapterTables, Segments


@dataclass(frozen=True, slots=True)
class DeviceSegments:
    """`Segments`, filled up with segments of no rows.

    Attributes:
        starts: int32 ``[segments_max + 1]``.
        lines: int32 ``[segments_max]``.
    """

    starts: torch.Tensor
    lines: torch.Tensor


@dataclass(frozen=True, slots=True)
class DeviceAdapterTables:
    """`AdapterTables` that do not grow.

    Attributes:
        pages: int32 ``[num_layers, lines_max, blocks_max]``.
        ranks: int32 ``[lines_max, num_targets]``.
        num_tiles: int32 ``[lines_max, num_targets, 2]``.
        tiles: int32 ``[lines_max, num_targets, 2, tiles_max, TILE_FIELDS]``.
        rank_max: of any adapter, a multiple of 4.
    """

    pages: torch.Tensor
    ranks: torch.Tensor
    num_tiles: torch.Tensor
    tiles: torch.Tensor
    rank_max: int


def make_device_segments(segments_max: int, device: torch.device | str) -> DeviceSegments:
    """Room for a batch of so many segments, now without rows."""
    return DeviceSegments(
        torch.zeros(segments_max + 1, dtype=torch.int32, device=device),
        torch.full((segments_max,), NO_ADAPTER, dtype=torch.int32, device=device),
    )


def make_device_tables(
    num_layers: int,
    num_targets: int,
    *,
    lines_max: int,
    blocks_max: int,
    tiles_max: int,
    rank_max: int,
    device: torch.device | str,
) -> DeviceAdapterTables:
    """Room for so many adapters of at most so many blocks, tiles of a matrix, and ranks."""

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    return DeviceAdapterTables(
        zeros(num_layers, lines_max, blocks_max),
        zeros(lines_max, num_targets),
        zeros(lines_max, num_targets, 2),
        zeros(lines_max, num_targets, 2, tiles_max, TILE_FIELDS),
        rank_max,
    )


def copy_line(tables: AdapterTables, line: int, to: DeviceAdapterTables) -> None:
    """Write an adapter's line of the host's tables into the device's, in the current stream."""
    assert int(tables.ranks[line].max(initial=0)) <= to.rank_max
    for host, device in (
        (tables.pages[:, line], to.pages[:, line]),
        (tables.ranks[line], to.ranks[line]),
        (tables.num_tiles[line], to.num_tiles[line]),
        (tables.tiles[line], to.tiles[line]),
    ):
        # The host's tables have room for more, or for less, than is used.
        common = tuple(slice(min(a, b)) for a, b in zip(host.shape, device.shape, strict=True))
        assert not host.any() or np.count_nonzero(host[common]) == np.count_nonzero(host)
        device[common] = torch.from_numpy(host[common]).to(device.device)


def on_host(
    segments: DeviceSegments, tables: DeviceAdapterTables
) -> tuple[Segments, AdapterTables]:
    """Both read back: what a device without kernels of ours has to do."""
    arrays = [
        each.cpu().numpy() for each in (tables.pages, tables.ranks, tables.num_tiles, tables.tiles)
    ]
    host = Segments(segments.starts.cpu().numpy(), segments.lines.cpu().numpy())
    return host, AdapterTables(*arrays)
