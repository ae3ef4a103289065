"""`bench hints` in small: two emulated hosts, where computing is much slower than fetching."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.deployment import symphony

CASES = ("resident", "hinted", "late", "unhinted", "recompute")
PROFILE = {
    "name": "slow", "base_ms": 1.0, "prefill_ms_per_token": 2.0, "decode_ms_per_turn": 0.1,
    "num_layers": 2, "kv_bytes_per_token": 1024, "max_model_len": 4096,
}  # fmt: skip


@pytest.mark.slow
def test_a_hinted_history_is_there_and_all_figures_are(tmp_path: Path) -> None:
    profile = tmp_path / "slow.json"
    profile.write_text(json.dumps(PROFILE))
    sizes = ["--history-tokens", "256", "--sessions", "1", "--lead-sessions", "1"]
    done = symphony("bench", "hints", "--json", "--emulate", str(profile), *sizes, timeout_s=280)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert all(found[f"{name}_ms"] > 0 for name in CASES)
    assert found["cached_tokens"].keys() == set(CASES)
    assert found["cached_tokens"]["hinted"] == found["cached_tokens"]["resident"] == 256
    assert found["cached_tokens"]["unhinted"] > 0 == found["cached_tokens"]["recompute"]
    leads = [lead_s for lead_s, _ in found["lead_s_to_ttft"]]
    assert leads[0] == 0 and leads == sorted(leads) and len(leads) == 6
    assert found["kv_bytes"] == 256 * 1024
    assert found["transfer_ms"] > 0 and found["recompute_over_resident"] > 1
