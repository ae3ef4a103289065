"""Adapters on a disk: what `Adapters` needs of it, and the real one, in folders of this host."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer

from services.kvstore.adapters.files import AdapterFiles, Found
from services.kvstore.adapters.sources import Source
from shared.adapters.base_weights import BaseWeights
from shared.adapters.check import BaseFacts, CheckedAdapter, check_adapter
from shared.adapters.layout import image_bytes, layout_image
from shared.adapters.source import AdapterLimits
from shared.errors import InvalidRequest, SymphonyError
from shared.ids import TenantId
from shared.wire.messages import AdapterAdd, AdapterRecord, LoraCard


class AdapterSource(Protocol):
    """A folder that a user named, with an adapter."""

    def sizes(self) -> dict[str, int]:
        """Bytes of the files that are taken, by name."""
        ...

    def parts(self, name: str) -> Iterator[bytes]:
        """A file's bytes."""
        ...


class IncomingAdapter(Protocol):
    """Files of an adapter that is being added. Blocking: for threads."""

    def append(self, name: str, data: Buffer) -> None:
        """Add to a file, which is made if it is not there.

        Raises:
            OSError: there is no room.
        """
        ...

    def copy(self, source: AdapterSource, sizes: Mapping[str, int]) -> None:
        """Copy files of these sizes.

        Raises:
            InvalidRequest: one changed meanwhile.
            OSError: there is no room.
        """
        ...

    def check(self, message: AdapterAdd) -> tuple[CheckedAdapter, int]:
        """What the files are, and how large their image is.

        Raises:
            AdapterInvalid: no adapter that can be served.
        """
        ...

    def is_it(self, adapter_hash: str, card: LoraCard) -> bool:
        """Whether the files are this adapter's, which was checked where it was added."""
        ...

    def install(self, adapter_hash: str, card: LoraCard) -> None:
        """Give files that are complete their name.

        Raises:
            OSError: the disk does not take it.
        """
        ...

    def discard(self) -> None:
        """Remove what was not installed."""
        ...


class AdapterStore(Protocol):
    """Adapters' files and records. Blocking: for threads. Every method may raise `OSError`."""

    def scan(self) -> Found:
        """What is there at the start; what was left half done is removed."""
        ...

    def open_source(self, path: str) -> AdapterSource:
        """A folder that a user named.

        Raises:
            PathForbidden: no adapter may come from there.
            NotFound: there is no such folder.
        """
        ...

    def begin(self) -> IncomingAdapter:
        """Room for the files of an adapter."""
        ...

    def write_record(self, record: AdapterRecord) -> None:
        """Let a name stand for its adapter."""
        ...

    def delete_record(self, tenant: TenantId, name: str) -> None:
        """Let a name stand for nothing."""
        ...

    def delete_folder(self, adapter_hash: str) -> None:
        """Remove an adapter's files."""
        ...

    def sizes(self, adapter_hash: str) -> dict[str, int]:
        """Bytes of the files that an image is built from, by name."""
        ...

    def folder_of(self, adapter_hash: str) -> Path:
        """Where an adapter's files are, if they are here."""
        ...


class AdapterFolders(AdapterFiles):
    """An `AdapterStore` of folders.

    Args:
        root: a folder of this user alone.
        allowed: folders that adapters may be loaded from.
        limits: of one adapter's files.
    """

    def __init__(self, root: Path, allowed: Sequence[Path], limits: AdapterLimits) -> None:
        super().__init__(root)
        self._allowed = allowed
        self._limits = limits

    def open_source(self, path: str) -> AdapterSource:
        return Source(self._allowed, path)

    def begin(self) -> IncomingAdapter:
        return _IncomingFolder(self, self._limits)


class _IncomingFolder:
    def __init__(self, files: AdapterFiles, limits: AdapterLimits) -> None:
        self._files = files
        self._limits = limits
        self._folder = files.new_folder()

    def append(self, name: str, data: Buffer) -> None:
        with (self._folder / name).open("ab") as file:
            file.write(data)

    def copy(self, source: AdapterSource, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():  # as it was measured, and no more: files may grow
            num_bytes = 0
            with (self._folder / name).open("xb") as file:
                for part in source.parts(name):
                    num_bytes += len(part)
                    if num_bytes > size:
                        break
                    file.write(part)
            if num_bytes != size:
                raise InvalidRequest(
                    f"{name}: it changed while it was copied", name, code="adapter_invalid"
                )

    def check(self, message: AdapterAdd) -> tuple[CheckedAdapter, int]:
        card = message.card
        names = tuple(message.base_names)
        weights = BaseWeights(names[0]) if names else {}
        facts = BaseFacts(names=names, vocabulary=message.vocabulary, weights=weights)
        checked = check_adapter(self._folder, card, self._limits, facts)
        return checked, image_bytes(card, layout_image(card, dict(checked.ranks)))

    def is_it(self, adapter_hash: str, card: LoraCard) -> bool:
        return self._is_in(self._folder, adapter_hash, card)

    def install(self, adapter_hash: str, card: LoraCard) -> None:
        def is_whole(folder: Path) -> bool:
            return self._is_in(folder, adapter_hash, card)

        self._files.install(self._folder, adapter_hash, is_whole)

    def discard(self) -> None:
        self._files.discard(self._folder)

    def _is_in(self, folder: Path, adapter_hash: str, card: LoraCard) -> bool:
        try:
            checked = check_adapter(folder, card, self._limits, BaseFacts(weights=None))
            return checked.adapter_hash == adapter_hash
        except (SymphonyError, OSError):
            return False
