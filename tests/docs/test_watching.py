"""Alarms and dashboards ask for metrics that there are, with labels that those have."""

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MODULES = (
    "services.frontend.observability.telemetry", "services.scheduler.service",
    "services.scheduler.job_service",
    "services.tracker.service", "services.kvstore.service", "services.worker.metrics",
    "shared.bus",
)  # fmt: skip
ADDED = {"service", "process", "le", "job"}  # by the frontend, by histograms, by Prometheus
ASKED = re.compile(r"(symphony_\w+)(?:\{([^}]*)\})?")


def expressions() -> Iterator[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"] and rule["labels"]["severity"]
            yield rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana" / "dashboards" / "symphony.json").read_text())


def known() -> dict[str, set[str]]:
    """Labels by name of sample."""
    for module in MODULES:
        import_module(module)
    found: dict[str, set[str]] = {}
    collectors: Any = REGISTRY._collector_to_names
    for collector, names in collectors.items():
        for name in names:
            found[name] = set(getattr(collector, "_labelnames", ()))
    return found


@pytest.mark.parametrize("expression", list(expressions()))
def test_what_is_asked_for_is_there(expression: str) -> None:
    metrics = known()
    asked = ASKED.findall(expression)
    assert asked or expression.startswith("up{"), expression
    for name, matchers in asked:
        assert name in metrics, name
        labels = set(re.findall(r"(\w+)\s*[=!]", matchers))
        by = re.findall(r"by \(([^)]*)\)", expression)
        labels |= {label.strip() for group in by for label in group.split(",")}
        assert labels <= metrics[name] | ADDED, (name, labels)
    assert expression.count("(") == expression.count(")")


def test_legends_show_labels_that_are_there() -> None:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = set(re.findall(r"by \((\w+)\)", target["expr"])) or {"process", "model"}
            assert labels <= kept, panel["title"]
            assert "{" not in re.sub(r"\{\{\w+\}\}", "", target["legendFormat"])


def test_compose_finds_the_files() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    for name in ("prometheus", "grafana", "jaeger"):
        service = compose["services"][name]
        assert service["profiles"] == ["watch"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service.get("volumes", ()):
            if volume.startswith("./"):
                assert (ROOT / volume.partition(":")[0]).is_dir(), volume
    targets = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (scraped,) = targets["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": ["frontend:8080"]}]
