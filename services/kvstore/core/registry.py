"""Which adapter stands under which name on this host, what a tenant and all of them may have, and
when an adapter's files may go.

A name is only a pointer to an adapter's hash: several may point to one. Files that no name points
to any more stay for as long as a turn can last that began on them, and count as their tenant's for
so long: else a user who replaces an adapter again and again would fill the disk.
"""

from dataclasses import dataclass, field
from hashlib import blake2b

from shared.adapters.config import AdapterTooLarge
from shared.adapters.record import AdapterExists, encode_adapter
from shared.adapters.tensors import WEIGHTS_FILE
from shared.errors import NoCapacity, SymphonyError, TenantQuota
from shared.ids import TenantId
from shared.wire.messages import AdapterRecord

Name = tuple[TenantId, str]

STATE_BYTES = 16
UNKNOWN_TENANT = TenantId("\n")  # of files whose tenant is not known


class AdapterBusy(NoCapacity):
    """Another adapter is being added under the same name."""

    code = "adapter_busy"


class TooManyAdapters(NoCapacity):
    """All tenants together have as many as there may be."""

    code = "too_many_adapters"
    http_status = 429


class DiskFull(SymphonyError):
    """There is no room for the files, or none that adapters may take."""

    code = "disk_full"
    http_status = 507


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryLimits:
    """Attributes:
    adapter_bytes_max: of one adapter's files.
    tenant_adapters_max: names of one tenant; 0: any number.
    tenant_bytes_max: of all files of one tenant; 0: as many as there is room for.
    adapters_max: names of all tenants together; 0: any number.
    disk_bytes_max: of all files; 0: as many as there is room for.
    adds_max: adapters being added at once.
    keep_ns: how long files stay that no name points to.
    """

    adapter_bytes_max: int
    tenant_adapters_max: int = 0
    tenant_bytes_max: int = 0
    adapters_max: int = 0
    disk_bytes_max: int = 0
    adds_max: int = 64
    keep_ns: int = 7_200_000_000_000


@dataclass(slots=True)
class _Files:
    """Attributes:
    names: that point to them.
    tenant: whose the last of those was; of several tenants' files, one of them.
    drop_at_ns: when they may go; None: while a name points to them, never.
    """

    num_bytes: int
    tenant: TenantId = UNKNOWN_TENANT
    names: set[Name] = field(default_factory=set)
    drop_at_ns: int | None = None


class Registry:
    """The records of one host, as they are on its disk. The shell does there what is decided here,
    one change after another: see `adapters.service`.
    """

    def __init__(self, limits: RegistryLimits) -> None:
        self._limits = limits
        self._records: dict[Name, AdapterRecord] = {}
        self._adding: dict[Name, int] = {}
        self._copying: dict[str, int] = {}  # from other hosts; bytes, by hash
        self._files: dict[str, _Files] = {}
        self._num_bytes = 0
        self._num_of: dict[TenantId, int] = {}
        self._bytes_of: dict[TenantId, int] = {}
        self._state = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def state(self) -> str:
        """All records as one hash."""
        return self._state.to_bytes(STATE_BYTES, "little").hex()

    @property
    def names(self) -> frozenset[Name]:
        """Every name that stands for something here."""
        return frozenset(self._records)

    @property
    def named_files(self) -> set[str]:
        """Hashes of the adapters that a name points to."""
        return {adapter_hash for adapter_hash, found in self._files.items() if found.names}

    @property
    def num_files(self) -> int:
        """Adapters whose files are here, wanted or not."""
        return len(self._files)

    def get(self, name: Name) -> AdapterRecord | None:
        """What stands under a name."""
        return self._records.get(name)

    def bytes_of(self, tenant: TenantId) -> int:
        """Of a tenant's files, also of those that are to go."""
        return self._bytes_of.get(tenant, 0)

    def on_found(
        self, records: list[AdapterRecord], files: dict[str, int], now_ns: int
    ) -> list[AdapterRecord]:
        """What was on the disk at the start. Returns records whose files are gone: they stand for
        nothing.

        Args:
            files: bytes, by hash.
        """
        assert not self._records and not self._files
        self._files = {
            adapter_hash: _Files(num_bytes, drop_at_ns=now_ns + self._limits.keep_ns)
            for adapter_hash, num_bytes in files.items()
        }
        for found in self._files.values():
            self._num_bytes += found.num_bytes
            self._weigh(UNKNOWN_TENANT, found.num_bytes)
        lost = []
        for record in records:
            if record.adapter_hash in self._files:
                self.stand(record, now_ns)
            else:
                lost.append(record)
        return lost

    def begin(self, name: Name, num_bytes: int, *, replace: bool) -> None:
        """An adapter is about to come; `end` says that it has, or will not.

        Raises:
            AdapterExists: the name is taken, and it is not to be replaced.
            AdapterBusy: another one is coming under the name, or too many are under any.
            AdapterTooLarge: by its files' bytes.
            TenantQuota: the tenant has as many as it may, or as many bytes.
            TooManyAdapters: all tenants together have.
            DiskFull: all files together have as many bytes as they may.
        """
        limits, tenant = self._limits, name[0]
        if name in self._adding:
            raise AdapterBusy(f"another adapter is being added as {name[1]!r}")
        if len(self._adding) >= limits.adds_max:
            raise AdapterBusy("too many adapters are being added")
        is_new = name not in self._records
        if not is_new and not replace:
            raise AdapterExists(name[1])
        if num_bytes > limits.adapter_bytes_max:
            raise AdapterTooLarge(
                WEIGHTS_FILE,
                f"{num_bytes} bytes of files, at most {limits.adapter_bytes_max} are taken",
            )
        coming = [(key, size) for key, size in self._adding.items() if key[0] == tenant]
        num_new = is_new + sum(key not in self._records for key, _ in coming)
        num = self._num_of.get(tenant, 0) + num_new
        if 0 < limits.tenant_adapters_max < num:
            raise TenantQuota(
                f"this tenant has as many adapters as it may: {limits.tenant_adapters_max}"
            )
        whole = self.bytes_of(tenant) + num_bytes + sum(size for _, size in coming)
        if 0 < limits.tenant_bytes_max < whole:
            raise TenantQuota(
                f"this tenant's adapters would have {whole} bytes, and may have "
                f"{limits.tenant_bytes_max}; those that were replaced or removed count until "
                "no turn can need them"
            )
        self._check_host(num_bytes, is_new=is_new)
        self._adding[name] = num_bytes

    def _check_host(self, num_bytes: int, *, is_new: bool) -> None:
        """What all tenants together may have, wherever each stays within its own."""
        limits = self._limits
        num_new = is_new + sum(name not in self._records for name in self._adding)
        if is_new and 0 < limits.adapters_max < len(self._records) + num_new:
            raise TooManyAdapters(f"there are as many adapters as may be: {limits.adapters_max}")
        coming = sum(self._adding.values()) + sum(self._copying.values())
        whole = self._num_bytes + num_bytes + coming
        if 0 < limits.disk_bytes_max < whole:
            raise DiskFull(
                f"all adapters would have {whole} bytes on this host's disk, and may have "
                f"{limits.disk_bytes_max}"
            )

    def has_files(self, adapter_hash: str) -> bool:
        """Whether an adapter's files are here."""
        return adapter_hash in self._files

    def use_files(self, adapter_hash: str, now_ns: int) -> bool:
        """Whether an adapter's files are here; they stay for a while longer."""
        found = self._files.get(adapter_hash)
        if found is not None and found.drop_at_ns is not None:
            found.drop_at_ns = now_ns + self._limits.keep_ns
        return found is not None

    def has_room_ahead(self, num_bytes: int) -> bool:
        """Whether there is room for files that no turn waits for: half of it is for others."""
        bytes_max = self._limits.disk_bytes_max // 2
        return not bytes_max or self._num_bytes + num_bytes <= bytes_max

    def begin_copy(self, adapter_hash: str, num_bytes: int) -> None:
        """Files of another host's adapter are about to come; `end_copy` says what became of them.

        Raises:
            DiskFull: all files together have as many bytes as they may.
        """
        self._check_host(num_bytes, is_new=False)
        self._copying[adapter_hash] = num_bytes

    def on_copied(self, adapter_hash: str, now_ns: int) -> None:
        """They have come. They stay until no worker has asked for them for a while."""
        if adapter_hash not in self._files:
            num_bytes, drop_at_ns = self._copying[adapter_hash], now_ns + self._limits.keep_ns
            self._files[adapter_hash] = _Files(num_bytes, drop_at_ns=drop_at_ns)
            self._num_bytes += num_bytes
            self._weigh(UNKNOWN_TENANT, num_bytes)

    def end_copy(self, adapter_hash: str) -> None:
        """They have come, or will not."""
        del self._copying[adapter_hash]

    def end(self, name: Name) -> None:
        """The adapter has come, or will not."""
        del self._adding[name]

    def stand(self, record: AdapterRecord, now_ns: int) -> AdapterRecord | None:
        """A record is on the disk, and its files are. Returns what stood there before."""
        name = (record.tenant, record.name)
        old = self._take(name, now_ns)
        self._records[name] = record
        self._state ^= _mark(record)
        self._num_of[record.tenant] = self._num_of.get(record.tenant, 0) + 1
        if record.adapter_hash not in self._files:
            self._files[record.adapter_hash] = _Files(record.num_bytes)
            self._num_bytes += record.num_bytes
        found = self._files[record.adapter_hash]
        if found.drop_at_ns is not None:
            self._weigh(found.tenant, -found.num_bytes)
            found.drop_at_ns = None
        found.names.add(name)
        found.tenant = record.tenant
        self._weigh(record.tenant, record.num_bytes)
        return old

    def fall(self, name: Name, now_ns: int) -> AdapterRecord | None:
        """A record is gone from the disk. Returns it."""
        return self._take(name, now_ns)

    def droppable(self, now_ns: int) -> list[str]:
        """Hashes of files that no turn can need any more. Each is returned once: the files are
        removed now."""
        due = [
            adapter_hash
            for adapter_hash, found in self._files.items()
            if found.drop_at_ns is not None and found.drop_at_ns <= now_ns
        ]
        for adapter_hash in due:
            found = self._files.pop(adapter_hash)
            self._num_bytes -= found.num_bytes
            self._weigh(found.tenant, -found.num_bytes)
        return due

    def _take(self, name: Name, now_ns: int) -> AdapterRecord | None:
        record = self._records.pop(name, None)
        if record is None:
            return None
        tenant = record.tenant
        self._state ^= _mark(record)
        self._num_of[tenant] -= 1
        if not self._num_of[tenant]:
            del self._num_of[tenant]
        self._weigh(tenant, -record.num_bytes)
        found = self._files[record.adapter_hash]
        found.names.discard(name)
        if not found.names:
            found.tenant, found.drop_at_ns = tenant, now_ns + self._limits.keep_ns
            self._weigh(tenant, found.num_bytes)
        return record

    def _weigh(self, tenant: TenantId, num_bytes: int) -> None:
        whole = self._bytes_of.get(tenant, 0) + num_bytes
        assert whole >= 0, f"{tenant!r} has {whole} bytes of adapters"
        if whole:
            self._bytes_of[tenant] = whole
        else:
            self._bytes_of.pop(tenant, None)


def next_revision(*standing: int) -> int:
    """Above everything that stands or stood."""
    return max(standing, default=0) + 1


def _mark(record: AdapterRecord) -> int:
    digest = blake2b(encode_adapter(record), digest_size=STATE_BYTES)
    return int.from_bytes(digest.digest(), "little")
