"""``python -m cli.setup_servers SECRETS NATS REDIS``: credentials into one folder, and what the two
servers are written into the configurations of the others, for containers that start them.

The configurations can be read by any user, since the servers run as users of their own: only the
server's container may see its folder.
"""

import sys
from pathlib import Path

from cli.base.config import LauncherConfig
from cli.base.reporting import complain
from cli.start.credentials import make_credentials, redis_password_file
from cli.start.servers import nats_config, redis_config
from cli.supervisor.preflight import tenants_by
from services.frontend.config import FrontendConfig
from shared.errors import SymphonyError
from shared.runtime.access import read_secret
from shared.runtime.config import load_config

DATA = Path("/data")  # in the containers of both
NATS_LISTENS = "port: 4222\nhttp: 127.0.0.1:8222\n"  # the second is asked by the health check


def set_up(secrets: Path, nats: Path, redis: Path) -> None:
    """Make what is not there; write the configurations again.

    Raises:
        ConfigError: a setting is wrong, or the folder for secrets is open to others.
        OSError: a file cannot be written.
    """
    config = load_config(LauncherConfig)
    tenants = tenants_by(load_config(FrontendConfig))
    make_credentials(secrets, tenants)
    password = read_secret(redis_password_file(secrets), "credentials")
    texts = {
        nats / "nats.conf": NATS_LISTENS + nats_config(DATA, secrets, tenants),
        redis / "redis.conf": redis_config(DATA, password, config.redis_bytes_max),
    }
    for path, text in texts.items():
        path.write_text(text)
        path.chmod(0o644)


def main() -> int:
    """Exit status for the folders named on the command line."""
    secrets, nats, redis = map(Path, sys.argv[1:])
    try:
        set_up(secrets, nats, redis)
    except SymphonyError as error:
        complain(error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
