"""``python -m cli.docs.drawings``: draws the diagrams in docs/images: sequences from `lives`, the
parts of a deployment, and README's bars.

A test compares the files with what this draws.
"""

from pathlib import Path
from xml.sax.saxutils import escape

from cli.base.children import ROOT
from cli.docs.bars import draw_bars
from cli.docs.lives import ADVISORY, DELETION, JOB, TURN, Drawing, Message, Note
from cli.docs.parts import draw_parts

FOLDER = ROOT / "docs" / "images"
DRAWINGS = {
    "turn.svg": TURN,
    "advisory.svg": ADVISORY,
    "job.svg": JOB,
    "deletion.svg": DELETION,
}
COLUMN, TOP, ROW, MARGIN = 190, 64, 40, 95
NOTE_LINE, NOTE_CHAR = 17, 6.6
# With a background and text colour of its own, to be readable on any page.
STYLE = """
  .ground { fill: #ffffff; stroke: #d0d7de }
  .participant { fill: #e7ecf5; stroke: #44546f }
  .life { stroke: #b3bccb; stroke-dasharray: 3 5 }
  .note { fill: #fff6d6; stroke: #b08800 }
  .way { stroke: #1f4e9e; stroke-width: 1.6; fill: none }
  .tip { fill: #1f4e9e }
  .pages { stroke: #1a7f37; stroke-width: 4; fill: none }
  .pages-tip { fill: #1a7f37 }
  text { fill: #1c2430; font: 13px system-ui, sans-serif }
  .name { font-weight: 600; font-size: 14px }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #161b22; stroke: #3d444d }
    .participant { fill: #25314a; stroke: #8fa3c8 }
    .life { stroke: #4a5568 }
    .note { fill: #3a3113; stroke: #d4a72c }
    .way { stroke: #79b0ff } .tip { fill: #79b0ff }
    .pages { stroke: #56d364 } .pages-tip { fill: #56d364 }
    text { fill: #e6edf3 }
  }
"""


def draw(drawing: Drawing) -> str:
    """The diagram as SVG."""
    y: float = TOP + 40
    parts: list[str] = []
    for step in drawing.steps:
        if isinstance(step, Note):
            y = _note(parts, drawing, step, y)
        else:
            _message(parts, drawing, step, y)
            y += ROW
    width = COLUMN * (len(drawing.participants) - 1) + 2 * MARGIN
    columns = [_participant(name, at, y) for at, name in enumerate(drawing.participants)]
    body = "\n".join([*columns, *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 10:g}" role="img" '
        f'aria-labelledby="title desc">\n<title id="title">{escape(drawing.title)}</title>\n'
        f'<desc id="desc">{escape(drawing.description)}</desc>\n<style>{STYLE}</style>\n'
        f'<rect class="ground" x="1" y="1" width="{width - 2}" height="{y + 8:g}" rx="8"/>\n'
        f"{body}\n</svg>\n"
    )


def _x(at: int) -> int:
    return MARGIN + COLUMN * at


def _participant(name: str, at: int, bottom: float) -> str:
    x = _x(at)
    return (
        f'<line class="life" x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom - 6:g}"/>'
        f'<rect class="participant" x="{x - 60}" y="20" width="120" height="34" rx="6"/>'
        f'<text class="name" x="{x}" y="42" text-anchor="middle">{escape(name)}</text>'
    )


def _message(parts: list[str], drawing: Drawing, step: Message, y: float) -> None:
    begin, end = (
        _x(drawing.participants.index(step.sender)),
        _x(drawing.participants.index(step.receiver)),
    )
    side = 1 if end > begin else -1
    kind = "pages" if step.is_pages else "way"
    tip = "pages-tip" if step.is_pages else "tip"
    dash = ' stroke-dasharray="6 5"' if step.is_reply else ""
    parts.append(
        f'<line class="{kind}"{dash} x1="{begin}" y1="{y:g}" x2="{end - 9 * side}" y2="{y:g}"/>'
        f'<path class="{tip}" d="M{end} {y:g} l{-11 * side} -5 v10 z"/>'
        f'<text x="{(begin + end) / 2:g}" y="{y - 7:g}" text-anchor="middle">'
        f"{escape(step.text)}</text>"
    )


def _note(parts: list[str], drawing: Drawing, step: Note, y: float) -> float:
    """Draw it; returns the y of the next step."""
    lines = step.text.split("\n")
    width = max(len(line) for line in lines) * NOTE_CHAR + 20
    height = NOTE_LINE * len(lines) + 10
    middle = _x(drawing.participants.index(step.at))
    right = COLUMN * (len(drawing.participants) - 1) + 2 * MARGIN - 8
    x = max(8.0, min(middle - width / 2, right - width))
    top = y - 22
    parts.append(
        f'<rect class="note" x="{x:g}" y="{top:g}" width="{width:g}" height="{height}" rx="4"/>'
    )
    parts += [
        f'<text x="{x + 10:g}" y="{top + 18 + NOTE_LINE * at:g}">{escape(line)}</text>'
        for at, line in enumerate(lines)
    ]
    return top + height + 34


def files() -> dict[Path, str]:
    """The SVG of every picture, by its path."""
    diagrams = {FOLDER / name: draw(drawing) for name, drawing in DRAWINGS.items()}
    others = {"architecture.svg": draw_parts(), "first-token.svg": draw_bars()}
    return diagrams | {FOLDER / name: text for name, text in others.items()}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
