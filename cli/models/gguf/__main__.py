"""``python -m cli.models.gguf FILE FOLDER``: a conversion in a process of its own. What it loads is
gone when it ends, and a file that breaks it breaks nothing else.
"""

import sys
from pathlib import Path

from cli.models.gguf.conversion import convert
from shared.errors import ConfigError


def main() -> int:
    """Remarks on stdout, one a line; a failure as one line on stderr and status 1."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        remarks = convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except ConfigError as error:
        print(error.message, file=sys.stderr)
        return 1
    print("\n".join(remarks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
