"""``python -m cli.supervisor FILE_NUMBER [--worker]``: the detached supervisor. Its options come
on standard input; what it reports goes to the file.
"""

import os
import subprocess
import sys
from functools import partial

from cli.start.ahead import WITH_WORKER, begin_worker
from shared.private import PRIVATE_UMASK


def _run(file_number: int, worker: "subprocess.Popen[bytes] | None") -> int:
    from cli.base.reporting import PipeReporter, quiet_libraries
    from cli.start.options import DeploymentOptions
    from cli.supervisor.deployment import run_deployment
    from shared.errors import SymphonyError

    quiet_libraries()
    reporter = PipeReporter(file_number)
    try:
        if not (given := sys.stdin.buffer.read()):
            return 1  # who started it has ended
        options = DeploymentOptions.parse(given)
        log = partial(reporter.log_to, options.supervisor_log)
        run_deployment(options, reporter, log, worker)
    except SymphonyError as error:
        reporter.failed(error.message)
        return 1
    return 0


if __name__ == "__main__":
    os.umask(PRIVATE_UMASK)
    os.set_inheritable(int(sys.argv[1]), False)
    sys.exit(_run(int(sys.argv[1]), begin_worker() if WITH_WORKER in sys.argv else None))
