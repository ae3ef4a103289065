"""Positional embeddings that take no notice of the positions they are given.

Decoders of the BART family count positions from the start of a call; those of the RoBERTa family
begin at another number than 0 where they count by themselves. Both are recognised by what they do
in a few short calls.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from services.worker.device.base.step import LayerProbe, StepContext, running, running_step
from services.worker.device.decoder.attention import UnsupportedModelError

TOKENS = 7  # in a call: a length that no other dimension has
SHIFT = 3
OFFSETS_MAX = 4  # that are tried, beside the one that a padding token makes


class PositionTable(nn.Module):
    """The embeddings of a module, looked up by the positions of the running step's rows.

    Attributes:
        table: ``[max_model_len, D]``.
    """

    def __init__(self, original: nn.Module, table: torch.Tensor, dimensions: int) -> None:
        super().__init__()
        self.original, self.dimensions = original, dimensions
        self.table: torch.Tensor
        self.register_buffer("table", table, persistent=False)

    def forward(self, *args: Any, **named: Any) -> Any:
        step = running_step()
        if not isinstance(step, StepContext):
            return self.original(*args, **named)
        rows = self.table[step.positions]
        return rows[None] if self.dimensions == 3 else rows


def embed_by_row(model: Any, max_model_len: int) -> int:
    """Let a decoder embed the positions of each row as transformers embeds those of one sequence.

    Args:
        model: in eval mode, with our attention.
        max_model_len: positions that its config says it has.

    Returns:
        Positions that it can be served for.

    Raises:
        UnsupportedModelError: its positional embeddings are of a form that is not known.
    """
    positions = torch.arange(TOKENS, device=model.device)
    tokens = _tokens(model)
    given = _logits(model, tokens, positions)
    offset = _offset(model, tokens, given)
    if offset:
        model.register_forward_pre_hook(_Shift(offset), with_kwargs=True)
        return max_model_len - offset
    if not torch.equal(given, _logits(model, tokens, positions + SHIFT)):
        return max_model_len
    for parent, name, table in _tables(model, tokens, max_model_len):
        setattr(parent, name, table)
    return max_model_len


class _Shift:
    """Adds to the positions that a model is given."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __call__(
        self, model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if (positions := named.get("position_ids")) is not None:
            named = {**named, "position_ids": positions + self._offset}
        return args, named


def _tokens(model: Any) -> torch.Tensor:
    """``[TOKENS]`` that are no padding."""
    num = model.get_input_embeddings().weight.shape[0]
    config = model.config.get_text_config()
    padding = getattr(config, "pad_token_id", None)
    usable = [token for token in range(min(num, 2 * TOKENS)) if token != padding]
    chosen = [usable[number % len(usable)] for number in range(TOKENS)]
    return torch.tensor(chosen, device=model.device)


def _logits(model: Any, tokens: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    named = {} if positions is None else {"position_ids": positions[None]}
    with torch.inference_mode(), running(LayerProbe()):
        logits: torch.Tensor = model(tokens[None], use_cache=False, **named).logits
    return logits


def _offset(model: Any, tokens: torch.Tensor, given: torch.Tensor) -> int:
    """The position that it gives a sequence's first token where it counts by itself."""
    try:
        counted = _logits(model, tokens, None)
    except Exception:  # it has to be given positions, whatever it raises
        return 0
    if torch.equal(counted, given):
        return 0
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    tried = range(1, OFFSETS_MAX) if padding is None else (padding + 1, *range(1, OFFSETS_MAX))
    for offset in tried:
        positions = torch.arange(TOKENS, device=model.device) + offset
        try:
            if torch.equal(counted, _logits(model, tokens, positions)):
                return offset
        except (IndexError, RuntimeError):  # it has fewer positions
            continue
    raise UnsupportedModelError("it counts positions in a way that is not known")


def _tables(
    model: Any, tokens: torch.Tensor, max_model_len: int
) -> list[tuple[nn.Module, str, PositionTable]]:
    """What to put in the place of modules that embed places in a call."""
    with _outputs(model) as first:
        _logits(model, tokens, torch.arange(TOKENS, device=model.device))
    with _outputs(model) as second:
        _logits(model, tokens.flip(0), torch.arange(TOKENS, device=model.device))
    found = {
        module
        for module, (_, _, output) in first.items()
        if module in second and torch.equal(output, second[module][2]) and _is_of_places(output)
    }
    innermost = {each for each in found if not found & set(list(each.modules())[1:])}
    made = {module: _table(module, *first[module], max_model_len) for module in innermost}
    return [
        (parent, name, made[child])
        for parent in list(model.modules())
        for name, child in parent.named_children()
        if child in made
    ]


def _is_of_places(output: torch.Tensor) -> bool:
    rows = output.reshape(-1, output.shape[-1])
    return len(rows) == TOKENS and not any(torch.equal(rows[0], row) for row in rows[1:])


def _table(
    module: nn.Module,
    args: tuple[Any, ...],
    named: dict[str, Any],
    output: torch.Tensor,
    max_model_len: int,
) -> PositionTable:
    """The module's embeddings of all positions, from the call that gave `output`."""
    try:
        with torch.inference_mode():
            longer = module(
                *(_lengthened(each, max_model_len) for each in args),
                **{name: _lengthened(each, max_model_len) for name, each in named.items()},
            )
        table = longer.reshape(-1, output.shape[-1]).clone()
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedModelError(f"positional embeddings of unknown form: {error}") from None
    if len(table) != max_model_len or not torch.equal(table[:TOKENS], output.reshape(TOKENS, -1)):
        raise UnsupportedModelError("positional embeddings that change with a call's length")
    return PositionTable(module, table, output.dim())


def _lengthened(argument: Any, length: int) -> Any:
    """An argument of a call of `TOKENS` tokens, as it is in one of `length`."""
    if isinstance(argument, torch.Size):
        return torch.Size(length if each == TOKENS else each for each in argument)
    if not isinstance(argument, torch.Tensor) or TOKENS not in argument.shape:
        return argument
    at = argument.shape.index(TOKENS)
    if torch.equal(argument.flatten(), torch.arange(TOKENS, device=argument.device)):
        shape = [length if each == TOKENS else 1 for each in argument.shape]
        return torch.arange(length, device=argument.device).reshape(shape)
    return argument.narrow(at, 0, 1).repeat_interleave(length, at)


@contextmanager
def _outputs(
    model: nn.Module,
) -> Iterator[dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]]]:
    """How each module is called meanwhile, and what it gives, a row for each token."""
    calls: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]] = {}

    def note(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.shape[-2:-1] == (TOKENS,):
            calls[module] = args, named, output

    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in model.modules()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
