"""The kvstore's ports on a real machine: folders, shared memory, threads, sockets, Redis, S3."""

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial

import lmdb

from services.kvstore.adapters.parts import FileParts
from services.kvstore.adapters.store import AdapterFolders
from services.kvstore.config import KvstoreConfig
from services.kvstore.core.base.tier_sizes import TierSizes
from services.kvstore.index.redis_link import TIMEOUT_S
from services.kvstore.leases import LeaseFiles, lock_directory
from services.kvstore.peers.sources import FindPart
from services.kvstore.peers.transport import PeerOptions, TcpTransport
from services.kvstore.ports import Ports
from services.kvstore.room import decide_sizes
from services.kvstore.tiers.disk import BlockStore
from services.kvstore.tiers.disk.slow_disk import SlowDisk
from services.kvstore.tiers.disk.start import Started, start_disk
from services.kvstore.tiers.executors import ThreadExecutor
from services.kvstore.tiers.memory.arenas import Arenas, remove_arenas
from services.kvstore.tiers.objects.store import Bucket
from shared.adapters.source import AdapterLimits
from shared.errors import ConfigError
from shared.runtime.access import read_secret, serving, trusting
from shared.runtime.redis_client import RedisClient
from shared.runtime.urls import hide_password
from shared.service import Runtime

log = logging.getLogger(__name__)


def take_folders(runtime: Runtime, config: KvstoreConfig) -> TierSizes:
    """Make the folders this process's own until the runtime is closed; how large the tiers in them
    will be.

    Raises:
        ConfigError: a folder is taken, cannot be written to, or has no room; names its setting.
    """
    for folder, variable in (
        (config.arena_path, "SYMPHONY_ARENA_DIR"),
        (config.disk_path, "SYMPHONY_DATA_DIR"),
    ):
        runtime.stack.callback(os.close, lock_directory(folder, variable))
    remove_arenas(config.arena_path)
    sizes = decide_sizes(config)
    log.info("tier sizes", extra={"arena_bytes": sizes.arena_bytes, "disk_bytes": sizes.disk_bytes})
    return sizes


async def open_ports(runtime: Runtime, config: KvstoreConfig, sizes: TierSizes) -> Ports:
    """Open what is in the folders. All is closed with the runtime.

    Raises:
        ConfigError: it cannot be opened; names the setting.
    """
    started = await asyncio.to_thread(_open_disk, config, sizes.disk_bytes)
    runtime.stack.callback(started.disk.close)
    redis = RedisClient(config.redis_url, config.redis_access, timeout_s=TIMEOUT_S)
    runtime.stack.push_async_callback(redis.aclose)
    memory = Arenas(config.arena_path, sizes)
    loop = asyncio.get_running_loop()

    def fail(error: BaseException) -> None:
        loop.call_soon_threadsafe(runtime.fail, "a thread failed", error)

    adapters = _adapters(config)
    disk: BlockStore = started.disk
    if config.disk_read_mb_s:
        disk = SlowDisk(disk, config.disk_read_mb_s * 1e6)
    return Ports(
        disk=disk,
        scan=started.scan,
        was_reset=started.was_reset,
        memory=memory,
        leases=LeaseFiles(config.arena_path),
        redis=redis,
        objects=_bucket(config),
        peers=_transport(config, memory, FileParts(adapters).find, fail),
        adapters=adapters,
        executors=partial(ThreadExecutor, fail=fail),
    )


def _open_disk(config: KvstoreConfig, bytes_max: int) -> Started:
    try:
        return start_disk(config.disk_path, bytes_max)
    except (OSError, lmdb.Error) as error:
        raise ConfigError(f"SYMPHONY_DATA_DIR={str(config.data_dir)!r}: {error}") from None


def _bucket(config: KvstoreConfig) -> Bucket | None:
    if config.objects_url is None:
        return None
    try:
        return Bucket(config.objects_url)
    except ValueError as error:
        shown_url = hide_password(config.objects_url)
        raise ConfigError(f"SYMPHONY_OBJECTS_URL={shown_url!r}: {error}") from None


def _transport(
    config: KvstoreConfig,
    memory: Arenas,
    find_part: FindPart,
    fail: Callable[[BaseException], None],
) -> TcpTransport | None:
    if config.peer_secret_file is None:
        return None
    secret = read_secret(config.peer_secret_file, "SYMPHONY_PEER_SECRET_FILE").encode()
    server_tls = client_tls = None
    if config.peer_ca_file is not None:
        client_tls = trusting(config.peer_ca_file, "SYMPHONY_PEER_CA_FILE")
    if config.peer_cert_file is not None and config.peer_key_file is not None:
        server_tls = serving(config.peer_cert_file, config.peer_key_file, "SYMPHONY_PEER_CERT_FILE")
    options = PeerOptions(
        host_id=config.host_id,
        secret=secret,
        listen=config.peer_listen,
        shown_address=config.peer_address,
        server_tls=server_tls,
        client_tls=client_tls,
        bytes_per_s=config.peer_bytes_per_s or None,
    )
    return TcpTransport(options, memory.by_page_bytes, fail, find_part)


def _adapters(config: KvstoreConfig) -> AdapterFolders:
    limits = AdapterLimits(num_bytes=config.adapter_bytes_max)
    return AdapterFolders(config.adapters_path, config.adapter_dirs, limits)
