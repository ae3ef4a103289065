"""`symphony docs`: the site, built by mkdocs from docs/ and from the code."""

import os
import subprocess
import sys

from cli.base.children import ROOT
from cli.base.reporting import out
from shared.errors import SymphonyError

QUIET = {"NO_MKDOCS_2_WARNING": "1"}  # the theme's news are for who maintains this, not for readers
SITE = ROOT / "build" / "site"


def build_site() -> None:
    """Build it below `SITE`.

    Raises:
        SymphonyError: a link leads nowhere, or a page is in no menu; mkdocs has said which.
    """
    if _mkdocs("build", "--strict"):
        raise SymphonyError("the site was not built: see above")
    out.print(f"symphony: {SITE / 'index.html'}", soft_wrap=True)


def serve_site(port: int) -> None:
    """Show it at `port` of this machine until Ctrl-C, and build it again when a page changes.

    Raises:
        SymphonyError: mkdocs ended; it has said why.
    """
    if _mkdocs("serve", "--dev-addr", f"127.0.0.1:{port}"):
        raise SymphonyError("the site is not shown: see above")


def _mkdocs(*words: str) -> int:
    command = [sys.executable, "-m", "mkdocs", *words, "--config-file", str(ROOT / "mkdocs.yml")]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **QUIET}, check=False).returncode
