"""``python -m services.kvstore.check FOLDER BYTES_MAX``: open the KV database, read all that a
start reads, write a little, and tell on stdout what is in it.

In a process of its own, because damage can end the process that meets it inside LMDB.
"""

import os
import resource
import struct
import sys
import threading
from pathlib import Path

import lmdb

from services.kvstore.disk import Disk, FoundBlock, Scan
from shared.blocks import KEY_BYTES, BlockKey
from shared.owners import OWNER_BYTES, OwnerKey

EXIT_DAMAGED = 1
EXIT_REFUSED = 3  # the folder or the file is not ours to open
EXIT_OUTDATED = 4  # another release's
_NUM_DELETED = struct.Struct("<Q")
_BLOCK = struct.Struct(f"<{KEY_BYTES}sHIQ{OWNER_BYTES}s{KEY_BYTES}sI")


def pack_scan(scan: Scan) -> bytes:
    """As it goes over the pipe.

    >>> unpack_scan(pack_scan(Scan([], 7)))
    Scan(blocks=[], num_deleted=7)
    """
    blocks = [
        _BLOCK.pack(
            block.key,
            block.num_layers,
            block.page_bytes,
            block.used_s,
            block.owner,
            block.parent,
            block.expiry_s,
        )
        for block in scan.blocks
    ]
    return b"".join([_NUM_DELETED.pack(scan.num_deleted), *blocks])


def unpack_scan(data: bytes) -> Scan:
    """Inverse of `pack_scan`.

    Raises:
        struct.error: the bytes are of another length.
    """
    blocks = [
        FoundBlock(
            BlockKey(key), num_layers, page_bytes, used_s, OwnerKey(owner), BlockKey(parent),
            expiry_s,
        )
        for key, num_layers, page_bytes, used_s, owner, parent, expiry_s in _BLOCK.iter_unpack(
            data[_NUM_DELETED.size :]
        )
    ]  # fmt: skip
    return Scan(blocks, _NUM_DELETED.unpack_from(data)[0])


def main(folder: Path, bytes_max: int) -> int:
    """Check the database; the exit code."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here is an answer, not a riddle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        disk = Disk(folder, bytes_max)
        scan = disk.scan()
        disk.rehearse()
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
