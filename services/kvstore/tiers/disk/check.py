"""``python -m services.kvstore.tiers.disk.check FOLDER BYTES_MAX``: open the KV database, read
all that a start reads, write a little, and print what is in it.

In a process of its own, because damage can end the process that meets it inside LMDB.
"""

import mmap
import os
import resource
import struct
import sys
import threading
from pathlib import Path

import lmdb
import numpy as np

from services.kvstore.tiers.disk import FOUND, Index, Scan, whole_slots

EXIT_DAMAGED = 1
EXIT_REFUSED = 3  # the folder or the file is not ours to open
EXIT_OUTDATED = 4  # another release's
_NUMBERS = struct.Struct("<QQ")  # records deleted, blocks found


def pack_scan(scan: Scan) -> bytes:
    """As the check prints it.

    >>> unpack_scan(pack_scan(Scan(num_deleted=7))).num_deleted
    7
    """
    return _NUMBERS.pack(scan.num_deleted, len(scan.found)) + scan.found.tobytes()


def unpack_scan(data: bytes | mmap.mmap) -> Scan:
    """Inverse of `pack_scan`; what was found stays where it is.

    Raises:
        ValueError: the bytes are of another length.
    """
    if len(data) < _NUMBERS.size:
        raise ValueError(f"{len(data)} bytes")
    num_deleted, num_found = _NUMBERS.unpack_from(data)
    if len(data) != _NUMBERS.size + num_found * FOUND.itemsize:
        raise ValueError(f"{len(data)} bytes of {num_found} blocks")
    if not num_found:
        return Scan(num_deleted=num_deleted)
    return Scan(np.frombuffer(data, FOUND, offset=_NUMBERS.size), num_deleted)


def main(folder: Path, bytes_max: int) -> int:
    """Check the database; the exit code."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here is an answer, not a riddle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        index = Index(folder, bytes_max)
        scan = index.scan(whole_slots(folder))
        index.rehearse()
    except (lmdb.ReadonlyError, OSError) as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    except lmdb.VersionMismatchError as error:
        print(error, file=sys.stderr)
        return EXIT_OUTDATED
    except Exception as error:  # whatever the bytes led to
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_DAMAGED
    sys.stdout.buffer.write(pack_scan(scan))
    return 0


def _end_with_parent() -> None:
    """The parent holds the other end of stdin, and writes nothing."""
    os.read(0, 1)
    os._exit(EXIT_DAMAGED)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(code)  # unmaps without making all durable, which the kvstore does in its own time
