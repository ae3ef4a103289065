"""``python -m cli.replicate_leases NUMBER``: have a cluster of NATS servers keep the leases of
schedulers and trackers on so many of its servers. A bucket is made with one copy: while the server
that has it is away, there is no leader.
"""

import asyncio
import sys
from dataclasses import replace

from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext

from cli.base.reporting import complain, quiet_libraries
from shared.bus import Bus
from shared.errors import PeerUnavailable, SymphonyError
from shared.runtime.config import ServiceConfig, load_config_or_exit
from shared.wire.subjects import LEASES

STREAM = f"KV_{LEASES.name}"
TIMEOUT_S = 5.0


async def replicate(config: ServiceConfig, number: int) -> None:
    """Make the bucket if it is not there, and set the number of its copies.

    Raises:
        PeerUnavailable: the servers do not answer, or are too few.
    """
    import nats

    bus = await Bus.connect(config.nats_url, "replicate", config.nats_access, timeout_s=TIMEOUT_S)
    try:
        await bus.bucket(LEASES, timeout_s=TIMEOUT_S)
    finally:
        await bus.drain()
    try:
        client = await nats.connect(
            config.nats_url, connect_timeout=TIMEOUT_S, **config.nats_access.options()
        )
        try:
            await _set_copies(client.jetstream(timeout=TIMEOUT_S), number)
        finally:
            await client.close()
    except (TimeoutError, OSError, NatsError) as error:
        raise PeerUnavailable(f"{STREAM}: {type(error).__name__} {error}") from None


async def _set_copies(manager: JetStreamContext, number: int) -> None:
    info = await manager.stream_info(STREAM)
    if info.config.num_replicas != number:
        await manager.update_stream(replace(info.config, num_replicas=number))


def main() -> int:
    """Exit status for the number named on the command line."""
    quiet_libraries()
    config = load_config_or_exit(ServiceConfig)
    try:
        asyncio.run(replicate(config, int(sys.argv[1])))
    except SymphonyError as error:
        complain(error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
