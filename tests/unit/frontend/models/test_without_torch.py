"""The frontend's process has no use for torch."""

import subprocess
import sys
from pathlib import Path

from services.worker.models.demo_model import make_demo_model

CODE = """
import sys
from services.frontend.rendering.without_torch import without_torch
without_torch()
from services.frontend.rendering.tokenizer import import_library, load_tokenizer
import_library()
tokenizer = load_tokenizer(sys.argv[1])
assert tokenizer.render([{"role": "user", "content": "hi"}], {}).startswith("<|im_start|>user")
assert tokenizer.encode("hi", special=False) == [104, 105]
assert sys.modules["torch"] is None
"""


def test_tokenizers_work_without_torch_and_nothing_imports_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(make_demo_model(tmp_path / "demo"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
