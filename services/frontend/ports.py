"""What the frontend takes from outside its process, each with the implementation that production
uses.
"""

import random
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from services.frontend.adapters.upload_files import UnnamedFiles, UploadFiles
from services.frontend.compiling.maker import GrammarMaker
from services.frontend.config import FrontendConfig
from services.frontend.core.process_pool import PoolLimits
from services.frontend.http.server import HttpServer, UvicornServer
from services.frontend.models.files import LocalModelFiles, ModelFiles
from services.frontend.rendering.pool import Pool
from services.frontend.rendering.texts import Texts
from services.frontend.sessions.redis import OpenRedis, redis_at
from services.frontend.tenants.gates import OpenThreads, part_of
from services.frontend.tenants.links import PACE, Connect
from shared.bus import Bus
from shared.service import Runtime

SHORT_CHAT_S_MAX = 3.0  # to render one, if its process gets little of a processor


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Attributes:
    http: where requests come from.
    connect: to NATS, for tenants' requests.
    redis: where sessions are stored.
    threads: for work that takes the processor for long.
    texts: what renders and tokenizes; the argument: several tenants use it.
    grammars: what compiles them.
    model_files, upload_files: the file system.
    draw: random numbers from 0 to below 1, which decide which requests are traced.
    """

    http: HttpServer
    connect: Connect
    redis: OpenRedis
    threads: OpenThreads
    texts: Callable[[bool], Texts]
    grammars: GrammarMaker
    model_files: ModelFiles
    upload_files: UploadFiles
    draw: Callable[[], float]


def open_ports(runtime: Runtime, config: FrontendConfig) -> Ports:
    """The real ones: a listening socket, NATS, Redis, threads, child processes, the disk. They are
    closed with the runtime.

    Raises:
        ConfigError: the address for HTTP cannot be used.
    """
    threads = _threads_of(runtime)
    grammars = GrammarMaker(runtime.clock)
    runtime.stack.push_async_callback(grammars.close)

    async def connect(name: str) -> Bus:
        access = config.nats_access
        return await Bus.connect(config.nats_url, name, access, timeout_s=None, pace=PACE)

    def texts(is_shared: bool) -> Texts:
        pool, quick = make_pools(runtime, config, is_shared=is_shared)
        quick.begin()  # each model's template is compiled there before the model is offered
        return Texts(pool, quick)

    return Ports(
        http=UvicornServer(config, runtime.clock),
        connect=connect,
        redis=redis_at(config.redis_url, config.redis_access),
        threads=threads,
        texts=texts,
        grammars=grammars,
        model_files=LocalModelFiles(threads(1, "files")),
        upload_files=UnnamedFiles(config.data_dir / "uploads"),
        draw=random.Random().random,
    )


def make_pools(runtime: Runtime, config: FrontendConfig, *, is_shared: bool) -> tuple[Pool, Pool]:
    """Processes for long texts, and for short chats. They end with the runtime.

    Args:
        is_shared: several tenants use them.
    """

    def pool(limit_s: float) -> Pool:
        num = config.text_processes
        limits = PoolLimits(
            num_children=num,
            work_ns=int(limit_s * 1e9),
            children_of_tenant=part_of(num, is_shared=True) if is_shared else 0,
        )
        made = Pool(runtime.clock, limits)
        runtime.stack.push_async_callback(made.close)
        return made

    return pool(config.text_limit_s), pool(min(config.text_limit_s, SHORT_CHAT_S_MAX))


def _threads_of(runtime: Runtime) -> OpenThreads:
    def threads(num: int, name: str) -> Executor:
        made = ThreadPoolExecutor(num, thread_name_prefix=name)
        runtime.stack.callback(made.shutdown, wait=False, cancel_futures=True)
        return made

    return threads
