"""What is measured, beside its bound on this hardware, another server, and what it is to become."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtest.bench.gpu.models import EIGHT_B, GpuShape
from loadtest.bench.gpu.returning import NEW_TOKENS
from shared.blocks import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Reference:
    """Figures of one card with the 8B shape: of vLLM, and ours to reach.

    Attributes:
        card: what the names of such cards contain.
        vllm: version and date, over HTTP on the same machine.
        figures: vLLM's and the aim, by name; None: not measured.
    """

    card: str
    vllm: str
    figures: Mapping[str, tuple[float | None, float]] = field(default_factory=dict)


REFERENCES = [
    Reference(
        "H200",
        "0.24.0, 2026-11-26",
        {
            "decode_ms_1": (4.92, 4.6),
            "decode_ms_16": (5.87, 5.5),
            "decode_ms_64": (9.15, 8.7),
            "tokens_per_s_64": (6220, 6900),
            "first_cached_ms_1": (21, 12),
            "first_cached_ms_16": (115, 45),
            "first_cached_ms_64": (308, 120),
            "first_short_ms": (None, 9),
            "prompt_ms": (109, 104),
            "prompts_tokens_per_s": (39_500, 41_000),
            "adapters_ms_1": (7.1, 5.4),
            "adapters_ms_16": (13.5, 7.3),
            "adapters_ms_64": (23.3, 11.5),
            "one_adapter_ms_1": (7.1, 5.2),
            "one_adapter_ms_16": (7.9, 6.3),
            "one_adapter_ms_64": (11.5, 9.6),
            "returning_ms": (62, 32),
            "returning_p90_ms": (72, 40),
            "hinted_ms": (None, 12),
            "hinted_p90_ms": (None, 20),
            "first_turns_s": (8.0, 7.8),
            "write_behind_share": (None, 0.02),
            "sgmv_share_32": (None, 0.8),
            "sgmv_share_64": (None, 0.8),
            "host_share": (None, 0.05),
        },
    )
]
# Of these more is better; of all others less.
RATES = ("tokens_per_s", "prompts_tokens_per_s", "sgmv_share")


def bounds(
    shape: GpuShape, ceilings: Mapping[str, float], adapter_bytes: int, num_sessions: int
) -> dict[str, float]:
    """What each figure is at best: bytes over the memory's or the link's rate, operations over the
    matrix units' rate, whichever takes longer."""
    memory = ceilings["memory_gb_per_s"] * 1e9
    link = ceilings["link_to_device_gb_per_s"] * 1e9

    def pass_s(num_tokens: float, context: int, num_bytes: float = 0.0) -> float:
        """A pass over so many new tokens that reads so many tokens' KV and further bytes."""
        read_s = (shape.weight_bytes + context * shape.token_bytes + num_bytes) / memory
        flops = shape.matmul_flops * num_tokens
        return float(max(read_s, flops / ceilings["matrix_tflops"] / 1e12))

    def prompt_s(length: int) -> float:
        flops_s = shape.prefill_flops(length) / ceilings["matrix_tflops"] / 1e12
        return float(max(pass_s(0, 0), flops_s))

    found: dict[str, float] = {}
    rest = shape.context % BLOCK_TOKENS or BLOCK_TOKENS
    for rows in shape.batches:
        context = rows * shape.context
        distinct = min(rows, shape.adapters) * adapter_bytes
        found[f"decode_ms_{rows}"] = pass_s(rows, context) * 1e3
        found[f"tokens_per_s_{rows}"] = rows / pass_s(rows, context)
        found[f"first_cached_ms_{rows}"] = pass_s(rows * rest, context) * 1e3
        found[f"adapters_ms_{rows}"] = pass_s(rows, context, distinct) * 1e3
        found[f"one_adapter_ms_{rows}"] = pass_s(rows, context, adapter_bytes) * 1e3
    found["first_short_ms"] = pass_s(shape.short, 0) * 1e3
    found["prompt_ms"] = prompt_s(shape.prefill) * 1e3
    found["prompts_tokens_per_s"] = shape.prefill / prompt_s(shape.prefill)
    hinted_s = pass_s(NEW_TOKENS, shape.history)
    returning_s = max(shape.history * shape.token_bytes / link, hinted_s)
    for name in ("ms", "p90_ms"):
        found[f"returning_{name}"] = returning_s * 1e3
        found[f"hinted_{name}"] = hinted_s * 1e3
    found["first_turns_s"] = num_sessions * prompt_s(shape.history)
    found |= {"write_behind_share": 0.0, "host_share": 0.0}
    return found | {f"sgmv_share_{rows}": 1.0 for rows in (32, 64)}


def make_table(
    hardware: str, shape: GpuShape, figures: Mapping[str, float], bound: Mapping[str, float]
) -> list[dict[str, Any]]:
    """A row for each figure: `measured`, `bound`, `vllm`, `aim` and whether that is `met`; the last
    three only on a card that they are known of."""
    fitting = [each for each in REFERENCES if each.card in hardware and shape == EIGHT_B]
    known = fitting[0].figures if fitting else {}
    rows: list[dict[str, Any]] = []
    for name, measured in figures.items():
        row: dict[str, Any] = {"figure": name, "measured": measured}
        if name in bound:
            row["bound"] = float(f"{bound[name]:.4g}")
        if name in known:
            vllm, aim = known[name]
            is_met = measured >= aim if name.startswith(RATES) else measured <= aim
            row |= {"vllm": vllm, "aim": aim, "met": is_met}
        rows.append(row)
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """For people, on standard error."""
    for line in _lines(rows):
        print(line, file=sys.stderr)


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'':26}{'measured':>10}{'bound':>10}{'vLLM':>10}{'aim':>10}"
    for row in rows:
        cells = [row.get(name) for name in ("measured", "bound", "vllm", "aim")]
        shown = "".join(f"{'' if cell is None else f'{cell:.4g}':>10}" for cell in cells)
        missed = "  missed" if row.get("met") is False else ""
        yield f"{row['figure']:26}{shown}{missed}"
