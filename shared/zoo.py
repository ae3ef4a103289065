"""Profiles of one-shot models: the model zoo of the deferred-batching paper, and what to emulate.

A batch of b inputs takes ``alpha b + beta`` (section 2.1); the tables are those of appendix C.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, isfinite
from typing import Literal, get_args

from shared.errors import ConfigError
from shared.profiles import PROFILES, LatencyProfile, load_profile

Device = Literal["1080ti", "a100"]
Subset = Literal["mixed", "strong", "weak"]

STRONG_ABOVE = 2.0  # beta / alpha


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model's latency profile on one device, and the target that its users have.

    Attributes:
        alpha_ms: each input of a batch.
        beta_ms: any batch.
        slo_ms: from a request's arrival to its result.
    """

    name: str
    alpha_ms: float
    beta_ms: float
    slo_ms: float

    def batch_ms(self, size: int) -> float:
        """Run time of a batch, ms.

        >>> zoo_model("1080ti", "BERT").batch_ms(2)
        14.175
        """
        return self.alpha_ms * size + self.beta_ms

    def size_within(self, limit_ms: float) -> int:
        """Largest batch that runs in `limit_ms`; 0 if none does.

        >>> zoo_model("1080ti", "ResNet50").size_within(27.0)
        10
        """
        return max(0, floor((limit_ms - self.beta_ms) / self.alpha_ms + 1e-9))


_ON_1080TI = (
    ZooModel("NASNetMobile", 0.57, 14.348, 33.0),
    ZooModel("MobileNetV3Small", 0.335, 5.35, 20.0),
    ZooModel("DenseNet169", 1.271, 13.618, 37.0),
    ZooModel("DenseNet121", 1.061, 10.312, 29.0),
    ZooModel("DenseNet201", 1.733, 15.687, 45.0),
    ZooModel("EfficientNetV2B0", 1.006, 7.493, 23.0),
    ZooModel("MobileNetV3Large", 0.82, 5.256, 20.0),
    ZooModel("InceptionV3", 1.964, 8.771, 33.0),
    ZooModel("EfficientNetV2B1", 1.661, 7.247, 27.0),
    ZooModel("ResNet50V2", 1.409, 5.947, 23.0),
    ZooModel("ResNet152V2", 3.471, 13.049, 53.0),
    ZooModel("ResNet101V2", 2.438, 9.095, 37.0),
    ZooModel("InceptionResNetV2", 5.09, 18.368, 77.0),
    ZooModel("EfficientNetB0", 1.569, 5.586, 23.0),
    ZooModel("MobileNetV2", 1.18, 3.483, 20.0),
    ZooModel("ResNet101", 3.164, 9.065, 43.0),
    ZooModel("EfficientNetB1", 2.489, 6.674, 33.0),
    ZooModel("ResNet50", 2.05, 5.378, 27.0),
    ZooModel("EfficientNetV2B2", 2.254, 5.896, 29.0),
    ZooModel("VGG19", 3.059, 7.857, 40.0),
    ZooModel("ResNet152", 4.599, 11.212, 59.0),
    ZooModel("MobileNet", 1.009, 2.39, 20.0),
    ZooModel("VGG16", 2.734, 5.786, 33.0),
    ZooModel("EfficientNetB2", 3.446, 5.333, 38.0),
    ZooModel("EfficientNetV2B3", 4.072, 5.981, 44.0),
    ZooModel("NASNetLarge", 17.656, 18.952, 179.0),
    ZooModel("EfficientNetV2S", 8.463, 8.862, 85.0),
    ZooModel("EfficientNetB3", 5.924, 4.849, 57.0),
    ZooModel("EfficientNetV2L", 40.313, 28.208, 378.0),
    ZooModel("EfficientNetV2M", 22.619, 14.786, 210.0),
    ZooModel("EfficientNetB5", 23.435, 10.301, 208.0),
    ZooModel("Xception", 4.751, 2.046, 42.0),
    ZooModel("SSDMobilenet", 23.778, 9.729, 209.0),
    ZooModel("EfficientNetB4", 12.088, 4.412, 105.0),
    ZooModel("BERT", 7.008, 0.159, 56.0),
)  # fmt: skip

_ON_A100 = (
    ZooModel("DenseNet121", 0.054, 10.546, 21.0),
    ZooModel("DenseNet201", 0.304, 14.345, 31.0),
    ZooModel("DenseNet169", 0.289, 13.365, 29.0),
    ZooModel("ResNet50V2", 0.135, 5.56, 20.0),
    ZooModel("EfficientNetB0", 0.115, 4.326, 20.0),
    ZooModel("ResNet101", 0.284, 8.266, 20.0),
    ZooModel("ResNet152", 0.39, 10.449, 24.0),
    ZooModel("ResNet101V2", 0.391, 8.219, 20.0),
    ZooModel("MobileNetV3Large", 0.196, 4.072, 20.0),
    ZooModel("EfficientNetB1", 0.291, 5.797, 20.0),
    ZooModel("ResNet50", 0.268, 5.172, 20.0),
    ZooModel("ResNet152V2", 0.589, 10.054, 24.0),
    ZooModel("MobileNetV2", 0.19, 2.892, 20.0),
    ZooModel("EfficientNetV2B3", 0.543, 7.596, 20.0),
    ZooModel("InceptionResNetV2", 1.112, 15.27, 39.0),
    ZooModel("EfficientNetV2B1", 0.443, 5.929, 20.0),
    ZooModel("NASNetMobile", 0.536, 6.86, 20.0),
    ZooModel("EfficientNetV2B0", 0.377, 4.272, 20.0),
    ZooModel("EfficientNetB2", 0.52, 5.333, 20.0),
    ZooModel("MobileNetV3Small", 0.315, 3.211, 20.0),
    ZooModel("InceptionV3", 0.913, 6.732, 20.0),
    ZooModel("MobileNet", 0.285, 1.901, 20.0),
    ZooModel("EfficientNetV2S", 1.454, 7.378, 26.0),
    ZooModel("EfficientNetV2B2", 0.901, 4.532, 20.0),
    ZooModel("VGG16", 0.66, 2.252, 20.0),
    ZooModel("EfficientNetB3", 1.239, 4.205, 20.0),
    ZooModel("Xception", 0.801, 2.638, 20.0),
    ZooModel("VGG19", 0.893, 2.181, 20.0),
    ZooModel("NASNetLarge", 3.464, 7.154, 42.0),
    ZooModel("EfficientNetV2M", 4.479, 6.861, 49.0),
    ZooModel("EfficientNetB4", 2.881, 4.103, 31.0),
    ZooModel("EfficientNetV2L", 7.52, 6.675, 73.0),
    ZooModel("EfficientNetB5", 6.121, 2.283, 53.0),
    ZooModel("SSDMobilenet", 19.448, 4.442, 164.0),
    ZooModel("EfficientNetB6", 9.754, 1.984, 82.0),
    ZooModel("EfficientNetB7", 16.339, 2.751, 136.0),
    ZooModel("BERT", 7.353, 0.222, 59.0),
)  # fmt: skip

_TABLES: dict[str, tuple[ZooModel, ...]] = {"1080ti": _ON_1080TI, "a100": _ON_A100}


def zoo(device: Device) -> list[ZooModel]:
    """The zoo on one device, by falling ``beta / alpha``.

    Source: deferred batch scheduling, appendix C: table 3 (1080Ti), table 4 (A100).
    """
    return list(_TABLES[device])


def zoo_model(device: Device, name: str) -> ZooModel:
    """One model of the zoo.

    Raises:
        ConfigError: it is not in the table; lists those that are.
    """
    for model in _TABLES[device]:
        if model.name == name:
            return model
    known = ", ".join(model.name for model in _TABLES[device])
    raise ConfigError(f"no model {name!r} in the zoo of {device}: use one of {known}")


def subset(models: Iterable[ZooModel], which: Subset) -> list[ZooModel]:
    """The models whose batching effect is strong (beta / alpha above 2), weak (below), or all
    ("mixed").

    Source: deferred batch scheduling, section 5.1.
    """
    if which == "mixed":
        return list(models)
    return [
        model
        for model in models
        if (model.beta_ms > STRONG_ABOVE * model.alpha_ms) == (which == "strong")
    ]


@dataclass(frozen=True, slots=True)
class Emulation:
    """What one emulated worker serves."""

    generative: tuple[LatencyProfile, ...] = ()
    oneshot: tuple[ZooModel, ...] = ()


def parse_emulation(text: str) -> Emulation:
    """What ``SYMPHONY_EMULATE`` names: entries with commas between.

    An entry is a generative profile (a name or a JSON file), ``zoo-1080ti`` or ``zoo-a100`` for the
    whole table, ``zoo-1080ti:ResNet50`` for one model of it, or
    ``linear:NAME:ALPHA_MS:BETA_MS:SLO_MS`` for a one-shot model of one's own.

    Raises:
        ConfigError: an entry is none of these, or two have one name.
    """
    generative: list[LatencyProfile] = []
    oneshot: list[ZooModel] = []
    for entry in (part.strip() for part in text.split(",")):
        kind, _, rest = entry.partition(":")
        if kind == "linear":
            oneshot.append(_parse_linear(entry))
        elif kind.startswith("zoo-"):
            oneshot += _parse_zoo(entry, kind.removeprefix("zoo-"), rest)
        elif entry:
            generative.append(_parse_generative(entry))
    names = [profile.name for profile in generative] + [model.name for model in oneshot]
    if not names:
        raise ConfigError(f"SYMPHONY_EMULATE={text!r} names no profile")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"SYMPHONY_EMULATE={text!r} names twice: {', '.join(twice)}")
    return Emulation(tuple(generative), tuple(oneshot))


def _parse_zoo(entry: str, device: str, name: str) -> list[ZooModel]:
    for known in get_args(Device):
        if device == known:
            return [zoo_model(known, name)] if name else zoo(known)
    known_zoos = ", ".join(f"zoo-{known}" for known in get_args(Device))
    raise ConfigError(f"no model zoo {entry!r}: use one of {known_zoos}")


def _parse_linear(entry: str) -> ZooModel:
    form = "linear:NAME:ALPHA_MS:BETA_MS:SLO_MS"
    parts = entry.split(":")
    if len(parts) != form.count(":") + 1 or not parts[1]:
        raise ConfigError(f"{entry!r} is not of the form {form}")
    try:
        alpha_ms, beta_ms, slo_ms = map(float, parts[2:])
    except ValueError:
        raise ConfigError(f"{entry!r}: its times are to be numbers ({form})") from None
    if not (alpha_ms > 0 and beta_ms >= 0 and slo_ms > 0) or not all(
        map(isfinite, (alpha_ms, beta_ms, slo_ms))
    ):
        raise ConfigError(f"{entry!r}: alpha and target are to be above 0, beta not below")
    return ZooModel(parts[1], alpha_ms, beta_ms, slo_ms)


def _parse_generative(entry: str) -> LatencyProfile:
    try:
        return load_profile(entry)
    except ConfigError as error:
        if entry in PROFILES or entry.endswith(".json"):
            raise
        raise ConfigError(
            f"{error.message}; one-shot models: zoo-1080ti, zoo-a100, zoo-a100:ResNet50, "
            "linear:NAME:ALPHA_MS:BETA_MS:SLO_MS"
        ) from None
