"""Adapters on the wire: what is known of each, how one comes and goes, and how its files travel."""

from dataclasses import dataclass, field

from shared.ids import FrontendId, HostId, ModelId, TenantId
from shared.wire.messages.adapters import AdapterRef, LoraCard


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRecord:
    """What stands under a tenant's name.

    Attributes:
        tenant: whose it is; `shared.adapters.record.EVERYBODY`: anybody may use it.
        model_id: its base.
        adapter_hash: of weights and scales: the name is only a pointer to it.
        ranks: of each target that it has, the largest of all layers, by name.
        lora_rank: the largest of those.
        num_bytes: of its files.
        image_bytes: of its image in the base's pages.
        root: where it came from, for people.
        host_id: whose kvstore has its files.
        created: wall-clock seconds.
        revision: grows with every change of what the name stands for.
        warnings: what is odd about it, and does no harm.
    """

    name: str
    tenant: TenantId
    model_id: ModelId
    adapter_hash: str
    ranks: dict[str, int]
    lora_rank: int
    num_bytes: int
    image_bytes: int
    root: str
    host_id: HostId
    created: int
    revision: int
    warnings: list[str] = field(default_factory=list)

    @property
    def ref(self) -> AdapterRef:
        """As turns name it."""
        return AdapterRef(
            adapter_hash=self.adapter_hash,
            name=self.name,
            lora_rank=self.lora_rank,
            ranks=self.ranks,
            image_bytes=self.image_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterUpload:
    """Files that a frontend was sent, and hands on when asked (`UPLOAD_PULL`).

    Attributes:
        files: sizes in bytes, by name.
    """

    frontend_id: FrontendId
    upload_id: str
    files: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterAdd:
    """Frontend to a kvstore: copy this adapter, check it, and let it have the name.

    Attributes:
        card: what adapters the base takes.
        base_names: by which the base is called.
        vocabulary: of its tokenizer, as `shared.adapters.vocabulary` says it; empty: not known.
        path: folder on the kvstore's host; empty with an upload.
        replace: another one may have the name already.
    """

    name: str
    tenant: TenantId
    model_id: ModelId
    card: LoraCard
    base_names: list[str] = field(default_factory=list)
    vocabulary: str = ""
    path: str = ""
    # the files, if they were uploaded; null: they are in a folder
    upload: AdapterUpload | None = None
    replace: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRemove:
    """Frontend to the kvstore that has it: this name is not to be served any more."""

    name: str
    tenant: TenantId
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterChanged:
    """A name stands for something else now.

    Attributes:
        record: None: for nothing.
    """

    name: str
    tenant: TenantId
    revision: int
    record: AdapterRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFetch:
    """Worker to the kvstore of its host: an adapter is to be built here, bring its files if they
    are not here. Answered when they are.

    Attributes:
        card: what adapters the base takes, to check them by.
    """

    adapter_hash: str
    card: LoraCard


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFind:
    """One host's kvstore to all: who has the files of this adapter?"""

    adapter_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFound:
    """A host that has them.

    Attributes:
        files: sizes in bytes, by name.
        address: where to fetch them: `host:port`, by the protocol of `services.kvstore.peers`.
    """

    host_id: HostId
    files: dict[str, int]
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersUsed:
    """Worker to all kvstores: so many turns on these adapters have begun here lately.

    Attributes:
        fingerprint: of their base.
        card: what adapters it takes.
        uses: by hash.
    """

    fingerprint: str
    card: LoraCard
    uses: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadPull:
    """Kvstore to frontend: a part of an uploaded file."""

    upload_id: str
    file: str  # its name in the upload
    offset: int  # first byte wanted
    num_bytes: int  # how many bytes at most


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadPart:
    """Attributes:
    data: base64; shorter than asked for only at the end of the file.
    """

    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLoad:
    """A tenant's request: let a folder on a kvstore's host have this name. Fields as of
    ``POST /v1/load_lora_adapter``.
    """

    lora_name: str
    lora_path: str  # absolute path on the kvstore's host
    load_inplace: bool = False  # replace an adapter of this name
    base_model_name: str | None = None  # the base; null: the only model that takes adapters
    tenant: TenantId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterNamed:
    """A tenant asks for one of its adapters, or for all that it may use, without a name."""

    lora_name: str = ""
    tenant: TenantId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """An adapter as its owner is shown it; fields as of `AdapterRecord`.

    Attributes:
        tenant: None: all tenants may use it.
        parent: its base.
    """

    id: str  # its name, which requests use as their model
    object: str = "adapter"
    created: int
    tenant: TenantId | None
    parent: ModelId
    root: str  # where it came from
    adapter_hash: str
    lora_rank: int
    ranks: dict[str, int]  # largest rank of each target
    num_bytes: int
    image_bytes: int  # what its weights take of the GPU KV pool
    revision: int
    warnings: list[str] = field(default_factory=list)  # what is odd about it, and does no harm


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfos:
    """Adapters that a tenant may use."""

    object: str = "list"
    data: list[AdapterInfo]  # the adapters


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterDeleted:
    """This name is not served any more."""

    id: str  # its name
    object: str = "adapter.deleted"
    deleted: bool = True  # true
