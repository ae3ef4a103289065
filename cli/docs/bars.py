"""The picture at the top of README: the first token of a returning turn, where it is computed
again, fetched, and fetched ahead; from the figures that the other pages show.
"""

import json
import re
from dataclasses import dataclass
from html import escape

from cli.base.children import ROOT

FIGURES = ROOT / "docs" / "figures" / "symphony.json"
GPU_PAGE = ROOT / "docs" / "gpu.md"
GPU_ROW = "returning turn of 8,000 tokens in host memory"
USERS = 256  # of those figure 11 was simulated for

TITLE = "First token of a returning turn, ms"
LEFT, BAR, ROW, SCALE, WIDTH = 250, 22, 32, 380, 740
STYLE = """
  .ground { fill: #ffffff; stroke: #d0d7de }
  .ours { fill: #1f4e9e } .theirs { fill: #8c96a5 }
  text { fill: #1c2430; font: 14px system-ui, sans-serif }
  .title { font-weight: 600; font-size: 16px } .note { font-size: 12px }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #161b22; stroke: #3d444d }
    .ours { fill: #79b0ff } .theirs { fill: #6e7a8c }
    text { fill: #e6edf3 }
  }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One measured time.

    Attributes:
        is_ours: of a turn as Symphony serves it; else of what it is compared with.
    """

    name: str
    ms: float
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Bars of one machine, which share a scale.

    Attributes:
        where: the machine and the load.
    """

    where: str
    bars: tuple[Bar, ...]


def groups() -> list[Group]:
    """What the picture shows, read from where the figures stand."""
    results = json.loads(FIGURES.read_text())["11"]["results"]
    at = results["users"].index(USERS)
    means = {name: runs[at]["ttft_ms"] for name, runs in results["runs"].items()}
    [row] = [line for line in GPU_PAGE.read_text().splitlines() if GPU_ROW in line]
    ours, theirs = (float(re.findall(r"\d+", cell)[0]) for cell in row.split("|")[2:4])
    return [
        Group(
            f"four A100s, simulated: 8B model, {USERS} people with documents of 8,000 to 60,000 "
            "tokens, mean",
            (
                Bar("history computed again", means["recompute"], is_ours=False),
                Bar("fetched when the turn comes", means["no hints"], is_ours=True),
                Bar("fetched ahead, by a hint", means["symphony"], is_ours=True),
            ),
        ),
        Group(
            "one H200, measured: 8B shape, 8,000 tokens in host memory, median",
            (
                Bar("vLLM 0.24, no hint", theirs, is_ours=False),
                Bar("Symphony, no hint", ours, is_ours=True),
            ),
        ),
    ]


def draw_bars() -> str:
    """The picture as SVG."""
    parts, y, said = [], 64, []
    for group in groups():
        longest = max(bar.ms for bar in group.bars)
        parts.append(f'<text class="note" x="20" y="{y}">{escape(group.where)}</text>')
        y += 12
        for bar in group.bars:
            length = SCALE * bar.ms / longest
            middle = y + BAR - 6
            parts.append(
                f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end">{escape(bar.name)}</text>'
                f'<rect class="{"ours" if bar.is_ours else "theirs"}" x="{LEFT}" y="{y}" '
                f'width="{length:.1f}" height="{BAR}" rx="3"/>'
                f'<text x="{LEFT + length + 8:.1f}" y="{middle}">{bar.ms:,.0f}</text>'
            )
            said.append(f"{bar.name}: {bar.ms:,.0f} ms")
            y += ROW
        y += 26
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" '
        f'aria-labelledby="title desc">\n<title id="title">{TITLE}</title>\n'
        f'<desc id="desc">{escape("; ".join(said))}</desc>\n<style>{STYLE}</style>\n'
        f'<rect class="ground" x="1" y="1" width="{WIDTH - 2}" height="{y - 2}" rx="8"/>\n'
        f'<text class="title" x="20" y="32">{TITLE}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )
