"""``symphony bench disk``: the KV disk fresh, and full with blocks coming and going; and a start.

For each page size a disk is filled once with blocks of random bytes by the kvstore's own writer,
then every round replaces as many blocks as it holds, each at random, and then the kvstore's loader
brings as much of it back as the arena holds. A start is measured on an index of so many pages,
whose slab is a hole: a start reads no page.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from loadtest.bench.disk.churn import Churn
from loadtest.bench.disk.starting import start_s
from loadtest.bench.options import numbers
from shared.errors import InvalidRequest

GIB = 1024**3
KIB = 1024


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return ``fresh_put_gb_s``, ``churn_put_gb_s`` and so on by page size, and
    ``start_s``.

    Raises:
        InvalidRequest: an option is wrong.
    """
    args = _parser().parse_args(argv)
    page_sizes = numbers("page-kb", args.page_kb)
    if min(args.layers, args.rounds, args.start_pages) < 1 or args.gb <= 0:
        raise InvalidRequest("--layers, --rounds, --start-pages, --gb: use numbers above 0")
    with tempfile.TemporaryDirectory(prefix="symphony-disk-", dir=args.folder) as folder:
        result: dict[str, Any] = {
            "gb": args.gb,
            "layers": args.layers,
            "by_page_kb": {
                str(page_kb): _churn(Path(folder) / str(page_kb), page_kb, args)
                for page_kb in page_sizes
            },
            "start_pages": args.start_pages,
            "start_s": round(start_s(Path(folder) / "start", args.start_pages, args.layers), 2),
        }
    print(f"a start on {args.start_pages:,} pages: {result['start_s']:g} s")
    return result


def _churn(folder: Path, page_kb: int, args: argparse.Namespace) -> dict[str, Any]:
    with Churn(folder, args.layers, page_kb * KIB, int(args.gb * GIB)) as disk:
        fresh = disk.fill()
        churning = [disk.replace_all() for _ in range(args.rounds)]
        read = statistics.median(disk.read() for _ in range(args.rounds))
        cold = disk.read() if disk.drop_cached() else None
    churn = statistics.median(churning)
    print(
        f"pages of {page_kb} KiB: put {fresh:.2f} GB/s fresh, {churn:.2f} full and churning;"
        f" read {read:.2f} GB/s" + ("" if cold is None else f", {cold:.2f} from the device")
    )
    return {
        "fresh_put_gb_s": round(fresh, 3),
        "churn_put_gb_s": round(churn, 3),
        "churn_over_fresh": round(churn / fresh, 3),
        "read_gb_s": round(read, 3),
        "page_cache_dropped": cold is not None,
        **({} if cold is None else {"cold_read_gb_s": round(cold, 3)}),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony bench disk", description=__doc__)
    parser.add_argument(
        "--page-kb", default="48,256", help="sizes (default: 48,256, of a small and an 8B model)"
    )
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--gb", type=float, default=8.0, help="how much a full disk holds, GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--start-pages", type=int, default=4_000_000, help="on disk at the start (default 4 M)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="on the disk to be measured (default: where temporary files are)",
    )
    return parser
