"""``python -m cli.health SERVICE``: exit 0 if this service is ready, for container health checks; 1
if it is not; 3 if NATS passes nothing on, so that it is unknown.

Asks over NATS, as every service answers there; ``SYMPHONY_INSTANCE`` names the instance.
"""

import asyncio
import sys

from cli.base.reporting import complain, quiet_libraries
from shared.bus import Bus
from shared.errors import PeerUnavailable, SymphonyError
from shared.runtime.config import ServiceConfig, load_config_or_exit
from shared.wire.messages import Empty
from shared.wire.subjects import SERVICE_STATUS

TIMEOUT_S = 2.0
NOT_READY, NO_NATS = 1, 3  # 2 is Docker's own


async def is_ready(config: ServiceConfig, service: str) -> bool:
    """Whether the service of this name and `config.instance` says that it is ready.

    Raises:
        PeerUnavailable: NATS does not answer, or passes no service's word on.
    """
    bus = await Bus.connect(config.nats_url, "health", config.nats_access, timeout_s=TIMEOUT_S)
    try:
        replies = await bus.gather(SERVICE_STATUS, Empty(), timeout_s=TIMEOUT_S)
    finally:
        await bus.drain()
    if not replies:
        raise PeerUnavailable("no service answers over NATS")
    return any(
        (reply.service, reply.instance, reply.state) == (service, config.instance, "ready")
        for reply in replies
    )


def main() -> int:
    """Exit status for the service named on the command line."""
    quiet_libraries()
    config = load_config_or_exit(ServiceConfig)
    try:
        if asyncio.run(is_ready(config, sys.argv[1])):
            return 0
        complain(f"{sys.argv[1]} is not ready")
    except SymphonyError as error:
        complain(error.message)
        return NO_NATS if isinstance(error, PeerUnavailable) else NOT_READY
    return NOT_READY


if __name__ == "__main__":
    sys.exit(main())
