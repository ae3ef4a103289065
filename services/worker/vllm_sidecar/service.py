"""KV of a stock ``vllm serve`` in our tiers: the connector is in vLLM, the kvstore of the host
keeps, and this stands between them. vLLM's API, scheduler and adapters stay its own.
"""

import asyncio
import logging

import uvicorn

from services.worker.device.base.executor import ModelInfo
from services.worker.device.thread import DeviceThreads
from services.worker.kv_client import KvClient
from services.worker.models.digest import weights_digest
from services.worker.ports import SharedFiles
from services.worker.vllm.fingerprint import continue_fingerprint
from services.worker.vllm.link import Listener, Peer, useful
from services.worker.vllm_kv import VllmKv
from services.worker.vllm_sidecar.api import make_api
from services.worker.vllm_sidecar.config import SidecarConfig
from services.worker.vllm_sidecar.hints import Hints, SessionKeys
from shared.blocks import BLOCK_TOKENS, BlockKey
from shared.errors import ConfigError
from shared.ids import WorkerId
from shared.owners import OwnerKey
from shared.runtime.dying import die
from shared.service import Runtime

log = logging.getLogger(__name__)


async def main(runtime: Runtime, config: SidecarConfig) -> None:
    """Wait for a vLLM, and serve it until it ends."""
    config.socket.parent.mkdir(parents=True, exist_ok=True)
    listener = Listener(config.socket)
    runtime.stack.callback(listener.close)
    await runtime.ready()
    if (peers := await _peers(runtime, listener)) is None:
        return
    info = await asyncio.to_thread(model_info, peers)
    kv = VllmKv(peers, runtime.clock, die, fingerprint=info.fingerprint)
    threads, keys = DeviceThreads(), SessionKeys()
    runtime.stack.callback(threads.close)
    kv_id = WorkerId(f"{config.host_id}-vllm{config.instance}"[-64:])
    kv.kv = KvClient(runtime.bus, config.host_id, kv_id, info, kv.hooks(), SharedFiles(), threads)
    kv.on_write = lambda write: keys.add(
        OwnerKey(bytes.fromhex(write.owner)),
        BlockKey(bytes.fromhex(write.key)),
        BlockKey(bytes.fromhex(write.parent)),
    )
    runtime.stack.callback(kv.kv.close)
    runtime.spawn(kv.run(), "KV connectors")
    runtime.spawn(kv.kv.maintain(), "kvstore")
    hints = Hints(kv.kv, keys, info.num_pages // info.num_layers)
    server = uvicorn.Server(
        uvicorn.Config(
            make_api(hints), config.http_address, config.http_port, log_config=None, lifespan="off"
        )
    )
    runtime.spawn(server.serve(), "hints")
    log.info("vLLM is here", extra={"model": info.model_id, "fingerprint": info.fingerprint})
    await runtime.stopping.wait()
    server.should_exit = True


async def _peers(runtime: Runtime, listener: Listener) -> list[Peer] | None:
    """The connectors of a vLLM; None: the process is to stop before one comes."""
    last = ""
    while not runtime.stopping.is_set():
        try:
            if peers := useful(await asyncio.to_thread(listener.accept, 1.0)):
                return peers
        except ConfigError as error:
            if error.message != last:
                log.info("waiting for vLLM", extra={"because_of": error.message})
                last = error.message
    return None


def model_info(peers: list[Peer]) -> ModelInfo:
    """The model, as far as the kvstore asks (slow: reads all its weights)."""
    scheduler, first = peers[0].registered, peers[1].registered
    num_layers = first.num_layers * (len(peers) - 1)
    digest = weights_digest(scheduler.model)
    return ModelInfo(
        model_id=scheduler.model,
        source=scheduler.model,
        fingerprint=continue_fingerprint(digest, [peer.registered for peer in peers]),
        max_model_len=0,
        num_layers=num_layers,
        page_bytes=first.page_bytes,
        stored_page_bytes=first.page_bytes,
        num_pages=first.num_blocks * num_layers,
        vocab_size=0,
        end_token_ids=frozenset(),
        block_tokens=BLOCK_TOKENS,
    )
