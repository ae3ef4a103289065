"""transformers without torch's compiler, which whoever wants it still has: each in a new process,
since what is imported stays.
"""

import subprocess
import sys

LEAN = "import sys, torch\nfrom shared.runtime.lean_imports import *\nimport_transformers()\n"
MODEL = """
from transformers import AutoModelForCausalLM, LlamaConfig
size = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 8}
config = LlamaConfig(**size, num_hidden_layers=1)
with torch.device("meta"):
    AutoModelForCausalLM.from_config(config)
model = AutoModelForCausalLM.from_config(config)
assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, 8)
assert isinstance(sys.modules[COMPILER], Compiler)
assert not {"torch.distributed.tensor", "torch._dynamo.utils"} & sys.modules.keys()
"""
MASKS = """
from transformers.masking_utils import TransformGetItemToIndex
with TransformGetItemToIndex():
    pass
"""
OWN = """
assert type(sys.modules[COMPILER]) is not Compiler and torch._dynamo is sys.modules[COMPILER]
import torch._dynamo.config
from torch._dynamo import optimize
"""


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_model_runs_without_the_compiler_until_a_mask_wants_it() -> None:
    run(LEAN + MODEL + MASKS + OWN)


def test_what_is_to_be_compiled_is() -> None:
    run(f"{LEAN}assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)) == 2{OWN}")


def test_a_compiler_that_is_there_stays() -> None:
    run(f"import torch._dynamo\n{LEAN}assert torch._dynamo.optimize\n{OWN}")
