"""The block diagram of a deployment: its processes and stores, and what goes between them."""

from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 980, 600
TITLE = "The parts of a deployment"
DESCRIPTION = (
    "Clients send turns and advisories to the frontend over HTTP or NATS, and get streamed text. "
    "The frontend submits a turn to the scheduler, which starts it on a worker. The worker pulls "
    "the prompt from the frontend and sends tokens straight back. An advisory goes from the "
    "frontend to the tracker, as an expected turn to the scheduler, and as a prefetch to the "
    "worker. On each host kvstore and workers share KV through memory, and the kvstore has disk, "
    "an object store and the kvstores of other hosts below it. Redis holds session records and "
    "KV locations."
)
STYLE = """
  .ground { fill: #ffffff; stroke: #d0d7de }
  .host { fill: #f6f8fa; stroke: #6b7785; stroke-dasharray: 6 4 }
  .process { fill: #e7ecf5; stroke: #44546f }
  .store { fill: #fff6d6; stroke: #b08800 }
  .message { stroke: #1f4e9e; stroke-width: 1.6; fill: none }
  .advisory { stroke: #a1431f; stroke-width: 1.6; fill: none; stroke-dasharray: 6 4 }
  .kv { stroke: #1a7f37; stroke-width: 4; fill: none }
  .message-tip { fill: #1f4e9e } .advisory-tip { fill: #a1431f } .kv-tip { fill: #1a7f37 }
  text { fill: #1c2430; font: 13px system-ui, sans-serif; text-anchor: middle }
  .name { font-weight: 600; font-size: 15px } .left { text-anchor: start }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #161b22; stroke: #3d444d }
    .host { fill: #1c222b; stroke: #7d8796 }
    .process { fill: #25314a; stroke: #8fa3c8 }
    .store { fill: #3a3113; stroke: #d4a72c }
    .message { stroke: #79b0ff } .advisory { stroke: #ffa580 } .kv { stroke: #56d364 }
    .message-tip { fill: #79b0ff } .advisory-tip { fill: #ffa580 } .kv-tip { fill: #56d364 }
    text { fill: #e6edf3 }
  }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A process, or a store, which is drawn as a cylinder."""

    name: str
    text: str
    x: int
    y: int
    width: int
    height: int
    is_store: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """A path from point to point.

    Attributes:
        kind: `message`, `advisory` or `kv`.
        at: the middle of the text's base line.
        is_both: it has a tip at its beginning, too.
    """

    text: str
    kind: str
    points: tuple[tuple[int, int], ...]
    at: tuple[int, int]
    is_both: bool = False


BOXES = (
    Box("Clients", "people, agents", 24, 140, 130, 130),
    Box("Frontend", "API, tokens, sessions", 262, 140, 170, 170),
    Box("Tracker", "advisories", 512, 50, 150, 64),
    Box("Scheduler", "placement, batches", 512, 164, 150, 64),
    Box("Worker", "model, GPU KV pool", 762, 60, 180, 250),
    Box("Kvstore", "host memory tier", 762, 392, 180, 64),
    Box("Redis", "session records, KV locations", 242, 386, 210, 76, is_store=True),
    Box("Disk", "local", 762, 506, 84, 72, is_store=True),
    Box("Objects", "S3", 858, 506, 84, 72, is_store=True),
)
ARROWS = (
    Arrow("turn", "message", ((154, 200), (262, 200)), (208, 193)),
    Arrow("advisory", "advisory", ((154, 162), (262, 162)), (208, 155)),
    Arrow("streamed text", "message", ((262, 240), (154, 240)), (208, 258)),
    Arrow("turn", "message", ((432, 196), (512, 196)), (472, 189)),
    Arrow("advisory", "advisory", ((347, 140), (347, 82), (512, 82)), (428, 75)),
    Arrow("expected turn", "advisory", ((587, 114), (587, 164)), (638, 144)),
    Arrow("prefetch", "advisory", ((662, 182), (762, 182)), (702, 175)),
    Arrow("start", "message", ((662, 212), (762, 212)), (702, 228)),
    Arrow("prompt, tokens", "message", ((432, 284), (762, 284)), (590, 276), is_both=True),
    Arrow("sessions", "message", ((347, 310), (347, 386)), (380, 352), is_both=True),
    Arrow("KV locations", "message", ((762, 424), (452, 424)), (590, 416)),
    Arrow("KV in shared memory", "kv", ((916, 310), (916, 392)), (836, 355), is_both=True),
    Arrow("", "kv", ((804, 456), (804, 510)), (0, 0), is_both=True),
    Arrow("", "kv", ((900, 456), (900, 510)), (0, 0), is_both=True),
    Arrow("other hosts", "kv", ((762, 446), (706, 446), (706, 560)), (706, 580), is_both=True),
)
LEGEND = (
    ("message", "message: HTTP, NATS, Redis"),
    ("advisory", "advisory, ahead of its turn"),
    ("kv", "bytes of KV"),
)


def draw_parts() -> str:
    """The diagram as SVG."""
    parts = [
        f'<rect class="ground" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="8"/>',
        '<rect class="host" x="740" y="22" width="224" height="450" rx="8"/>',
        _text("Host, one of many", 852, 44),
        *(_box(box) for box in BOXES),
        *(_arrow(arrow) for arrow in ARROWS),
    ]
    for at, (kind, text) in enumerate(LEGEND):
        y = 516 + 26 * at
        parts.append(_arrow(Arrow("", kind, ((30, y), (84, y)), (0, 0))))
        parts.append(f'<text class="left" x="98" y="{y + 5}">{escape(text)}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="title desc">\n<title id="title">{escape(TITLE)}</title>\n'
        f'<desc id="desc">{escape(DESCRIPTION)}</desc>\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _text(text: str, x: int, y: int, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x}" y="{y}">{escape(text)}</text>'


def _box(box: Box) -> str:
    x, y, width, height = box.x, box.y, box.width, box.height
    middle = x + width // 2
    if box.is_store:
        round_ = f"a{width / 2:g} 8 0 0"
        shape = (
            f'<path class="store" d="M{x} {y + 8} {round_} 1 {width} 0 v{height - 16} '
            f'{round_} 1 {-width} 0 z"/><path class="store" d="M{x} {y + 8} {round_} 0 {width} 0"/>'
        )
    else:
        shape = f'<rect class="process" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
    base = y + height // 2 + (6 if box.is_store else 0)
    name = _text(box.name, middle, base - 3, "name")
    return shape + name + _text(box.text, middle, base + 17)


def _arrow(arrow: Arrow) -> str:
    path = " L".join(f"{x} {y}" for x, y in arrow.points)
    drawn = f'<path class="{arrow.kind}" d="M{path}"/>'
    drawn += _tip(arrow.kind, arrow.points[-2], arrow.points[-1])
    if arrow.is_both:
        drawn += _tip(arrow.kind, arrow.points[1], arrow.points[0])
    return drawn + (_text(arrow.text, *arrow.at) if arrow.text else "")


def _tip(kind: str, before: tuple[int, int], end: tuple[int, int]) -> str:
    """A tip at `end`, of a line that is level or upright there."""
    dx, dy = end[0] - before[0], end[1] - before[1]
    size = 12 if kind == "kv" else 9
    along = -size if dx > 0 or dy > 0 else size
    to = f"l{along} -6 v12 z" if dx else f"l-6 {along} h12 z"
    return f'<path class="{kind}-tip" d="M{end[0]} {end[1]} {to}"/>'
