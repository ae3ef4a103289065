"""An adapter's folder: what its files say of it, and its content's hash."""

import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from shared.adapters.config import (
    CONFIG_BYTES_MAX,
    CONFIG_FILE,
    AdapterConfig,
    AdapterInvalid,
    AdapterTooLarge,
    parse_config,
)
from shared.adapters.tensors import (
    WEIGHTS_FILE,
    AdapterTensors,
    ModuleTensors,
    TensorEntry,
    match_modules,
    read_header,
)
from shared.wire.messages.adapters import LoraCard

PICKLE_FILE = "adapter_model.bin"
HASH_BYTES = 16

_VERSION = b"adapter 1"  # counts how content is hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLimits:
    """Attributes:
    num_bytes: of all files that are copied.
    header_bytes: of the safetensors file's header.
    num_tensors: in that file.
    """

    num_bytes: int = 1 << 30
    header_bytes: int = 4 << 20
    num_tensors: int = 1 << 14


NO_LIMITS = AdapterLimits(num_bytes=1 << 62, header_bytes=100 << 20, num_tensors=1 << 30)


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """Attributes:
    config_bytes: of its file; so is `weights_bytes`.
    weights: the safetensors file, open.
    """

    config: AdapterConfig
    tensors: AdapterTensors
    num_tensors: int
    config_bytes: int
    weights_bytes: int
    weights: BinaryIO


@contextmanager
def open_source(folder: Path, card: LoraCard, limits: AdapterLimits) -> Iterator[AdapterSource]:
    """What config and header say, and the weights to read.

    Raises:
        AdapterInvalid: a file is not there, not what it should be, or too large.
    """
    with _open(folder, CONFIG_FILE) as file:
        raw = file.read(CONFIG_BYTES_MAX + 1)
    if len(raw) > CONFIG_BYTES_MAX:
        raise AdapterInvalid(CONFIG_FILE, f"larger than {CONFIG_BYTES_MAX} bytes")
    config = parse_config(raw, card.rank_max)
    with _open(folder, WEIGHTS_FILE) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limits.num_bytes:
            raise AdapterTooLarge(
                WEIGHTS_FILE, f"{size} bytes, at most {limits.num_bytes} are taken"
            )
        entries = read_header(file, size, limits.header_bytes, limits.num_tensors)
        tensors = match_modules(entries, card, config)
        yield AdapterSource(config, tensors, len(entries), len(raw), size, file)


def content_hash(modules: tuple[ModuleTensors, ...], digests: Mapping[str, bytes]) -> str:
    """Of the modules' tensors and scales: `adapter_hash`, hex.

    Args:
        modules: by name.
        digests: by the name of a tensor; of its bytes, by `digest`. So layers can be read in any
            order.
    """
    whole = new_digest()
    whole.update(_VERSION)
    tensors = sorted((each for one in modules for each in (one.a, one.b)), key=_name)
    for each in tensors:
        _add_text(whole, each.name)
        _add_text(whole, each.dtype)
        whole.update(struct.pack(f"<B{len(each.shape)}Q", len(each.shape), *each.shape))
        whole.update(digests[each.name])
    for module in modules:
        _add_text(whole, module.name)
        whole.update(struct.pack("<f", module.scale))
    return whole.hexdigest()


def new_digest() -> blake2b:
    """An empty one."""
    return blake2b(digest_size=HASH_BYTES)


def _add_text(digest: blake2b, text: str) -> None:
    raw = text.encode()
    digest.update(struct.pack("<I", len(raw)) + raw)


def _name(entry: TensorEntry) -> str:
    return entry.name


@contextmanager
def _open(folder: Path, name: str) -> Iterator[BinaryIO]:
    """One of the folder's files. What is no file, such as a pipe, is not waited for."""
    try:
        fd = os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise AdapterInvalid(name, _why_not(folder, name, error)) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise AdapterInvalid(name, "is no file")
    with os.fdopen(fd, "rb") as file:
        yield file


def _why_not(folder: Path, name: str, error: OSError) -> str:
    if name == WEIGHTS_FILE and (folder / PICKLE_FILE).exists():
        return f"there is only {PICKLE_FILE}: pickles are never loaded, save it as safetensors"
    return f"cannot be read: {error.strerror}"
