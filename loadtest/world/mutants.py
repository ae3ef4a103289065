"""Finds what the simulation finds of the mutants."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.world.core_mutants import CORE_MUTANTS
from loadtest.world.mutant import Mutant
from loadtest.world.shell_mutants import SHELL_MUTANTS

ROOT = Path(__file__).resolve().parents[2]
CODE = ("services", "shared", "loadtest", "kernels")
HUNT_MIN_S, SEED_MAX_S = 120.0, 3.0  # a hunt that takes longer is given up

MUTANTS = (*CORE_MUTANTS, *SHELL_MUTANTS)


def hunt(mutant: Mutant, first: int, num: int) -> dict[str, Any]:
    """Run seeds on a copy of the code with the mutant in it, until one fails."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder)
        for name in CODE:
            shutil.copytree(ROOT / name, root / name)  # compiled modules, too, which stay valid
        mutant.apply(root)
        started_s = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "loadtest.world.hunt", str(first), str(num)],
                cwd=root, env=environment, capture_output=True, text=True, check=False,
                timeout=HUNT_MIN_S + SEED_MAX_S * num,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            found = {"seed": None, "why": "a seed does not end", "num_seeds": num}
        else:
            assert done.returncode == 0, f"{mutant.name}: {done.stderr[-2000:]}"
            found = json.loads(done.stdout)
        return {"mutant": mutant.name, **found, "took_s": round(time.monotonic() - started_s, 1)}


def run_mutants(first: int, num: int) -> dict[str, Any]:
    """Hunt all of them, one a core at a time."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        hunts = []
        for found in pool.map(partial(_hunt_one, first, num), MUTANTS):
            hunts.append(found)
            is_found = found["seed"] is not None
            end = f"seed {found['seed']}: {found['why']}" if is_found else "LIVES"
            print(f"{found['mutant']}: {end}", flush=True)
    return {
        "mutants": len(MUTANTS),
        "found": sum(found["seed"] is not None for found in hunts),
        "seeds": num,
        "first": first,
        "hunts": hunts,
        "violations": [f"lives: {f['mutant']}" for f in hunts if f["seed"] is None],
        "repeat": f"./symphony bench chaos --mutants --seeds {num} --first {first}",
    }


def _hunt_one(first: int, num: int, mutant: Mutant) -> dict[str, Any]:
    return hunt(mutant, first, num)
