"""The end of a process that cannot even stop in order."""

import logging
import os
from typing import NoReturn

log = logging.getLogger(__name__)

EXIT_STUCK = 70


def die(why: str) -> NoReturn:
    """End at once, whatever threads are at: one that hangs would be waited for in vain. The kernel
    lets go of what the process held, and whoever watches it starts another.
    """
    log.critical(why)
    logging.shutdown()
    os._exit(EXIT_STUCK)
