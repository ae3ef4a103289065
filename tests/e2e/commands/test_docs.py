"""What README and docs tell people to type is typed, at a cluster that has what they name: a small
model under each name.

Left out are commands that start, stop or measure a cluster (`LEFT_OUT`); `tests/docs` holds those
against the command line. A load test is made short.
"""

import ast
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import nats
import numpy as np
import pytest
from openai import OpenAI
from safetensors.numpy import save_file

from cli.base.children import ROOT
from loadtest.deployment import environment
from services.worker.models.demo_adapters import make_demo_adapter
from services.worker.models.demo_model import make_demo_model
from tests.cluster import Cluster
from tests.docs.blocks import SHELLS, Block, blocks

HOUSE = "http://127.0.0.1:8080"
SHELL_PAGES = ("README.md", "docs/quickstart.md", "docs/api.md")
PYTHON_PAGES = (*SHELL_PAGES, "docs/agents.md", "docs/nats.md")
# Of models that are not served here: tests/docs holds them against the endpoints alone.
OTHER_MODELS = re.compile("my-(classifier|reranker|resnet)")
SHELL_BLOCKS = [
    block
    for page in SHELL_PAGES
    for block in blocks(ROOT / page, SHELLS)
    if not OTHER_MODELS.search(block.text)
]
PYTHON_BLOCKS = [block for page in PYTHON_PAGES for block in blocks(ROOT / page, {"python"})]
LEFT_OUT = ("up", "down", "doctor", "test", "bench", "demo", "plan", "docs")
LAUNCHER = f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
if words[0] in {LEFT_OUT} or words[:2] == ["adapters", "check"]:
    sys.exit(0)
if words[0] == "loadtest":
    if os.path.exists("loaded"):  # one is enough
        sys.exit(0)
    open("loaded", "w").close()
    words = [each for each in words if each != "--watch"]
    words += ["--users", "2", "--duration", "15", "--faster", "40"]
os.execv(sys.executable, [sys.executable, "-P", "-m", "cli.main", *words])
"""
SAYS_ERRORS = '#!/bin/sh\nexec {curl} --silent --show-error --fail-with-body "$@"\n'
NOTHING = "#!/bin/sh\n"
HIDDEN, VOCAB, POSITIONS = 32, 512, 512
ENCODER = {
    "architectures": ["BertModel"], "model_type": "bert", "vocab_size": VOCAB,
    "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": HIDDEN, "max_position_embeddings": POSITIONS, "type_vocab_size": 2,
}  # fmt: skip


def write_encoder(folder: Path, tokenizer_of: Path) -> None:
    """A random encoder of one layer; made without torch, which would take longer to import."""
    folder.mkdir()
    dense = ("attention.self.query", "attention.self.key", "attention.self.value",
             "attention.output.dense", "intermediate.dense", "output.dense")  # fmt: skip
    layer = "encoder.layer.0"
    matrices = {f"{layer}.{name}": (HIDDEN, HIDDEN) for name in dense}
    matrices["pooler.dense"] = (HIDDEN, HIDDEN)
    norms = ("embeddings.LayerNorm", f"{layer}.attention.output.LayerNorm",
             f"{layer}.output.LayerNorm")  # fmt: skip
    tables = {"word": VOCAB, "position": POSITIONS, "token_type": 2}
    random = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        **{f"{name}.weight": shape for name, shape in matrices.items()},
        **{f"{name}.bias": (HIDDEN,) for name in (*matrices, *norms)},
        **{f"{name}.weight": (HIDDEN,) for name in norms},
        **{f"embeddings.{name}_embeddings.weight": (num, HIDDEN) for name, num in tables.items()},
    }
    tensors = {name: random.random(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(ENCODER))
    for file in tokenizer_of.glob("tokenizer*"):
        shutil.copy(file, folder)


def readers_models(folder: Path) -> tuple[Path, Path]:
    """Small models under the names that pages use: one that talks, one that embeds."""
    talker, encoder = make_demo_model(folder / "smollm2-135m"), folder / "my-encoder"
    write_encoder(encoder, talker)
    return talker, encoder


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader types: a launcher, and the files that pages take for there."""
    folder = tmp_path_factory.mktemp("clone")
    write_program(folder / "symphony", LAUNCHER)
    (folder / "bin").mkdir()
    write_program(folder / "bin" / "curl", SAYS_ERRORS.format(curl=shutil.which("curl")))
    for name in ("pip", "st"):  # what the one would bring is here; the other runs for long
        write_program(folder / "bin" / name, NOTHING)
    (folder / ".venv" / "bin").mkdir(parents=True)
    write_program(folder / ".venv" / "bin" / "python", NOTHING)  # tests/frameworks run the examples
    return folder


@pytest.fixture(scope="module")
def cluster(clone: Path) -> Iterator[Cluster]:
    talker, encoder = readers_models(clone / "models")
    make_demo_adapter("vowels", talker, clone / "fox")
    pirate = make_demo_adapter("digits", talker, clone / "pirate")
    with Cluster(
        clone / "data",
        "--model",
        str(talker),
        "--model",
        str(encoder),
        "--adapter",
        f"pirate={pirate}",
        "--served-model-name",
        "a100-llama3-8b=smollm2-135m",
        "--served-model-name",
        "minilm=my-encoder",
        settings={
            "SYMPHONY_ADAPTER_DIRS": f'["{clone}"]',
            "SYMPHONY_MAX_TOKENS_DEFAULT": "32",  # it talks nonsense until it is stopped
        },
    ) as running:
        with running.client() as client:
            client.completions.create(
                model="smollm2-135m", prompt="The fox", extra_body={"session_id": "fox"}
            )
        yield running


def at(cluster: Cluster, clone: Path, text: str) -> str:
    """`text` for this cluster and this folder."""
    for said, here in (
        (HOUSE, cluster.url), ("/srv/adapters", str(clone)), ("~/.symphony", str(cluster.data_dir)),
    ):  # fmt: skip
        text = text.replace(said, here)
    return text


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=lambda block: block.place)
def test_commands_work(cluster: Cluster, clone: Path, block: Block) -> None:
    httpx.delete(f"{cluster.url}/v1/adapters/fox")  # of another page
    text = at(cluster, clone, block.text)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", text],
        cwd=clone,
        env=environment({
            "SYMPHONY_DATA_DIR": str(cluster.data_dir),
            "PATH": f"{clone / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }),
        input="Hello\n/exit\n",
        capture_output=True,
        text=True,
        timeout=240,  # on a machine that stalls
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{block.place}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=lambda block: block.place)
def test_python_works(
    cluster: Cluster, clone: Path, block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in re.findall(r"^(?:from|import) (\w+)", block.text, re.MULTILINE):
        pytest.importorskip(library)
    monkeypatch.setenv("NATS_URL", cluster.run.nats_url)
    monkeypatch.setenv("NATS_NKEY", cluster.nkey())
    text = at(cluster, clone, block.text)
    code = compile(text, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with ExitStack() as closing:
        # Pages go on with what their first block made.
        names: dict[str, Any] = {
            "client": closing.enter_context(OpenAI(base_url=f"{cluster.url}/v1", api_key="none")),
            "messages": [{"role": "user", "content": "Hello"}],
            "json": json,
        }
        if re.search(r"^\S.*\bawait\b", text, re.MULTILINE):
            asyncio.run(on_the_bus(code, names))
        else:
            exec(code, names)


async def on_the_bus(code: Any, names: dict[str, Any]) -> None:
    """Run code that awaits, with a connection as a tenant has one."""
    nc = await nats.connect(os.environ["NATS_URL"], nkeys_seed=os.environ["NATS_NKEY"])
    await eval(code, names | {"nc": nc})
    await nc.drain()
