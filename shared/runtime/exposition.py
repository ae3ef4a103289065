"""Metrics in Prometheus's text format, or as OpenMetrics, which has exemplars: of this process, and
of many put together.

Source: Prometheus, "Exposition formats", text-based format 0.0.4; OpenMetrics 1.0.
"""

import base64
import re
import zlib
from collections.abc import Collection, Iterable, Mapping

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from shared.runtime.metrics import PREFIX

Sample = tuple[str, Mapping[str, str], float]  # name without the project's prefix, labels, value

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
END = "# EOF\n"  # of OpenMetrics
TEXT_BYTES_MAX = 4 * 1024 * 1024  # of one process
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def own_metrics(*, as_openmetrics: bool = False) -> str:
    """What this process measures. Takes milliseconds."""
    make = openmetrics.generate_latest if as_openmetrics else generate_latest
    return make(REGISTRY).decode()


def pack_text(text: str) -> str:
    """For the wire; metrics become ten times smaller."""
    return base64.b64encode(zlib.compress(text.encode(), level=1)).decode()


def unpack_text(packed: str) -> str:
    """What was packed.

    Raises:
        ValueError: it is nothing packed, or too large.
    """
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(packed), TEXT_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if unpacking.unconsumed_tail:
        raise ValueError(f"more than {TEXT_BYTES_MAX} bytes")
    return data.decode()


def merged(texts: Iterable[tuple[Mapping[str, str], str]], *, as_openmetrics: bool = False) -> str:
    """Metrics of several processes as one text, each family once.

    Args:
        texts: of each process the labels that its samples get, and its metrics.
        as_openmetrics: they are that, and so is what they make.

    >>> text = "# HELP a b\\n# TYPE a gauge\\na 1.0\\n"
    >>> print(merged([({"p": "x"}, text), ({"p": "y"}, text)]), end="")
    # HELP a b
    # TYPE a gauge
    a{p="x"} 1.0
    a{p="y"} 1.0
    """
    families: dict[str, list[str]] = {}
    is_new = True
    for labels, text in texts:
        more = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items())
        family: list[str] = families.setdefault("", [])
        for line in text.split("\n"):
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                is_new = name not in families
                family = families.setdefault(name, [line] if is_new else [])
            elif line.startswith("#"):
                if is_new and line != END.strip():
                    family.append(line)
            elif line:
                family.append(_labelled(line, more))
    whole = "".join(f"{line}\n" for family in families.values() for line in family)
    return whole + END if as_openmetrics else whole


def _labelled(sample: str, labels: str) -> str:
    """A sample with more labels.

    >>> _labelled('a{b="c"} 1', 'd="e"'), _labelled("a 1", 'd="e"')
    ('a{d="e",b="c"} 1', 'a{d="e"} 1')
    """
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f"{name}{{{labels},{rest}" if not rest.startswith("}") else f"{name}{{{labels}{rest}"
    name, _, rest = sample.partition(" ")
    return f"{name}{{{labels}}} {rest}"


def without(text: str, name: str) -> str:
    """Metrics but for the samples of this name, without the project's prefix.

    >>> without("symphony_a 1\\nsymphony_ab 2\\n", "a")
    'symphony_ab 2\\n'
    """
    begins = tuple(f"{PREFIX}{name}{end}" for end in "{ ")
    return "\n".join(line for line in text.split("\n") if not line.startswith(begins))


_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_PLAIN = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def samples_of(text: str, names: Collection[str]) -> list[Sample]:
    """Samples of these names, without the project's prefix, with their labels and values. Others
    are not even read: they are many.

    >>> samples_of('# HELP symphony_a b\\nsymphony_a{c="d"} 2.0\\nsymphony_x 1\\n', {"a"})
    [('a', {'c': 'd'}, 2.0)]
    """
    found: list[Sample] = []
    for line in text.split("\n"):
        if not line.startswith(PREFIX):
            continue
        name = line[len(PREFIX) : min(line.find(end) % (len(line) + 1) for end in "{ ")]
        if name in names and (match := _SAMPLE.fullmatch(line[len(PREFIX) :])):
            labels = {
                key: re.sub(r"\\.", lambda match: _PLAIN.get(match[0], match[0]), value)
                for key, value in _LABEL.findall(match[2] or "")
            }
            found.append((name, labels, float(match[3])))
    return found
