"""What Locust's file does, in a process of its own: Locust patches the one that imports it."""

import subprocess
import sys

from loadtest.deployment import environment

INIT = """
from types import SimpleNamespace as Fields
from loadtest.users import locustfile as file

def slow_stage(*_):
    file.RUN.stage = "begun"  # by the master's order, which came while this one was made
    return "made late"

file.Stage, file.SETTLE_S = slow_stage, 0
file.options_of = lambda _: Fields(profile="chat", watch=False)
parsed = Fields(no_tables=False, headless=True)
file.on_init(Fields(parsed_options=parsed, runner=None, user_classes=[]))
print(file.RUN.stage)
"""


def test_a_test_that_a_master_began_meanwhile_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INIT], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "begun", done.stderr
