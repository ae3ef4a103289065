"""Holds families against transformers, one after the other, and writes the page."""

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.bench.families.page import write, write_tables
from loadtest.bench.families.rows import Row, families_of
from loadtest.bench.families.variants import DECODER, DEFAULT, NEEDED, VARIANTS, Options
from shared.errors import InvalidRequest


def run(argv: list[str]) -> dict[str, Any]:
    """Run the command; a row for each variant.

    Raises:
        InvalidRequest: transformers generates text with no such family, or there is no page.
    """
    args = _arguments(argv)
    _be_quiet()
    if args.tables:
        if args.write is None:
            raise InvalidRequest("--tables: --write says into which page")
        write_tables(args.write)
        return {"written": str(args.write)}
    known = known_families()
    if unknown := sorted(set(args.family) - set(known)):
        raise InvalidRequest(f"families {', '.join(unknown)}: transformers generates no text so")
    rows: list[Row] = []
    for family in args.family or known:
        for variant, options in variants_of(family).items():
            started_at = time.monotonic()
            row = hold(family, variant, options)
            took_s = time.monotonic() - started_at
            print(f"{family}, {variant}: {row.verdict} {row.reason} ({took_s:.1f} s)", flush=True)
            rows.append(row)
    if args.write is not None:
        write(args.write, rows)
    counts = {verdict: len(families_of(rows, verdict)) for verdict in ("right", "refused")}
    return {"families": counts, "rows": [asdict(row) for row in rows]}


def known_families() -> list[str]:
    """All that transformers generates text with, by the name in their configs."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def variants_of(family: str) -> dict[str, Options]:
    """By name: the config's own options first."""
    needed = NEEDED.get(family, {})
    found: dict[str, Options] = {DEFAULT: needed}
    if DECODER not in needed and _may_be_decoder(family):
        found[DECODER] = {**needed, DECODER: True}
    more = VARIANTS.get(family, {})
    return found | {name: {**needed, **options} for name, options in more.items()}


def hold(family: str, variant: str, options: Options) -> Row:
    """Hold one variant against transformers."""
    from transformers import AutoConfig

    from services.worker.device.decoder.attention import UnsupportedModelError
    from services.worker.device.verify.check import Untried, check
    from services.worker.device.verify.cut import cut_candidates
    from services.worker.device.verify.reasons import model_class

    try:
        config = AutoConfig.for_model(family, **options)
    except Exception as error:  # of classes of all kinds
        return Row(family, "", variant, "not tried", _line(error))
    kind = model_class(config)
    name = "" if kind is None else kind.__name__
    try:
        check(config, cut_candidates(config), "fast", is_compiled=False)
    except Untried as error:
        return Row(family, name, variant, "not tried", _without_name(error.message))
    except UnsupportedModelError as error:
        return Row(family, name, variant, "refused", _without_name(error.message))
    return Row(family, name, variant, "right", "")


def _may_be_decoder(family: str) -> bool:
    """Whether it is an encoder unless its config says otherwise, and not the half of another."""
    from transformers import CONFIG_MAPPING

    try:
        config = CONFIG_MAPPING[family]()
    except Exception:  # as above
        return False
    is_half = bool(getattr(config, "is_encoder_decoder", False))
    return getattr(config, DECODER, None) is False and not is_half


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _without_name(message: str) -> str:
    """Without the family, which a table names beside it."""
    return message.partition(": ")[2]


def _be_quiet() -> None:
    import torch
    import transformers

    torch.set_num_threads(1)  # the models are tiny
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="symphony bench families")
    parser.add_argument("family", nargs="*", help="by the name in its config; all by default")
    parser.add_argument("--write", type=Path, help="the page to write")
    parser.add_argument(
        "--tables", action="store_true", help="of it formats, experts and memory alone; in seconds"
    )
    return parser.parse_args(argv)
