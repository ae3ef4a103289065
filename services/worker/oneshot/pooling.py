"""From a text's token vectors to its embedding, as the model's own files say.

A sentence-transformers model lists its steps in ``modules.json``. A model without it is pooled by
the mean of its tokens and brought to length 1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from services.worker.oneshot.files import read_json
from shared.errors import ConfigError

PREFIX = "pooling_mode_"
PROMPTS_FILE = "config_sentence_transformers.json"
KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet", "mpnet")
SENTENCE_FILES = [f"sentence_{kind}_config.json" for kind in KINDS]  # the first found counts
Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _cls(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden[:, 0]


def _sum(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (hidden * mask.unsqueeze(-1)).sum(1)


def _mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _sum(hidden, mask) / mask.sum(1, keepdim=True)


def _mean_sqrt_len(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _sum(hidden, mask) / mask.sum(1, keepdim=True).sqrt()


def _max(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)


def _weighted_mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return _sum(hidden, weights) / weights.sum(1, keepdim=True)


def _last(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    last = mask.sum(1).long() - 1  # inputs are padded on the right
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


# In the order in which sentence-transformers concatenates them.
POOLS: dict[str, Pool] = {
    "cls_token": _cls,
    "max_tokens": _max,
    "mean_tokens": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean_tokens": _weighted_mean,
    "lasttoken": _last,
}
SHORT_NAMES = {
    "cls": "cls_token",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens",
    "lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """Attributes:
    modes: keys of `POOLS`; their results are concatenated.
    normalize: to Euclidean length 1.
    max_tokens: longest input that the model is meant for; None: as long as it can.
    """

    modes: tuple[str, ...] = ("mean_tokens",)
    normalize: bool = True
    max_tokens: int | None = None

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Embed.

        Args:
            hidden: ``[batch, tokens, hidden]``, padded on the right.
            mask: ``[batch, tokens]``, 1 where there is a token, at least one a row.

        Returns:
            ``[batch, hidden * len(modes)]`` float32.
        """
        hidden, mask = hidden.float(), mask.float()
        pooled = torch.cat([POOLS[mode](hidden, mask) for mode in POOLS if mode in self.modes], -1)
        return torch.nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def has_pooling(source: str) -> bool:
    """Whether sentence-transformers' files are with the model."""
    return read_json(source, "modules.json") is not None


def pooling_files(source: str) -> list[str]:
    """Names of sentence-transformers' files, in subfolders too, whether they are there or not."""
    modules = read_json(source, "modules.json") or []
    folders = [path for _, path in _steps(source, modules) if path]
    return ["modules.json", PROMPTS_FILE, *SENTENCE_FILES, *(f"{p}/config.json" for p in folders)]


def load_pooling(source: str) -> Pooling:
    """How this model pools, from sentence-transformers' files, or the default.

    Raises:
        ConfigError: it has a step or a setting that is not known here.
    """
    modules = read_json(source, "modules.json")
    if modules is None:
        return Pooling()
    modes: tuple[str, ...] = ()
    normalize = False
    for kind, path in _steps(source, modules):
        if kind == "Transformer" and path:
            raise ConfigError(f"{source}: its weights are in the subfolder {path!r}")
        if kind == "Pooling":
            modes = _modes(source, _settings(source, f"{path}/config.json") or {})
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise ConfigError(f"{source}: embedding step {kind!r} is not supported")
    if not modes:
        raise ConfigError(f"{source}: modules.json names no pooling")
    _check_prompts(source)
    return Pooling(modes, normalize, _max_tokens(source))


def _steps(source: str, modules: Any) -> Iterator[tuple[str, str]]:
    """Kind and folder of each step; every kind but the transformer itself has a folder."""
    for module in modules if isinstance(modules, list) else [None]:
        if not isinstance(module, dict) or "type" not in module:
            raise ConfigError(f"{source}: modules.json is not a list of steps with their types")
        kind, path = str(module["type"]).rsplit(".", 1)[-1], str(module.get("path") or "")
        if kind == "Pooling" and not path:
            raise ConfigError(f"{source}: modules.json names no folder of its pooling")
        yield kind, path


def _settings(source: str, name: str) -> dict[str, Any] | None:
    settings = read_json(source, name)
    if settings is not None and not isinstance(settings, dict):
        raise ConfigError(f"{source}: {name} holds no settings")
    return settings


def _check_prompts(source: str) -> None:
    """What is put before every text would have to be put there by the frontend."""
    settings = _settings(source, PROMPTS_FILE) or {}
    name = settings.get("default_prompt_name")
    if name is not None and (settings.get("prompts") or {}).get(name) != "":
        raise ConfigError(f"{source}: default_prompt_name {name!r} is not supported")


def _max_tokens(source: str) -> int | None:
    found = (_settings(source, name) for name in SENTENCE_FILES)
    settings = next((one for one in found if one is not None), {})
    if settings.get("do_lower_case"):  # texts have become tokens before they come here
        raise ConfigError(f"{source}: do_lower_case of sentence-transformers is not supported")
    stated = settings.get("max_seq_length")
    if stated is not None and not isinstance(stated, int):
        raise ConfigError(f"{source}: max_seq_length {stated!r} is no number")
    return stated


def _modes(source: str, config: dict[str, Any]) -> tuple[str, ...]:
    named = config.get("pooling_mode")
    if named is not None:
        names = [named] if isinstance(named, str) else list(named)
        modes = [SHORT_NAMES.get(name, name) for name in names]
    else:
        modes = [key.removeprefix(PREFIX) for key, on in config.items() if on and PREFIX in key]
    if unknown := [mode for mode in modes if mode not in POOLS]:
        raise ConfigError(f"{source}: pooling {', '.join(unknown)} is not supported")
    return tuple(modes)
