"""deploy/kubernetes fits together: names, selectors, volumes, ports, settings, metrics, probes.

What kustomize makes of it is looked at, too, where `kubectl` or `kustomize` is installed; and held
against Kubernetes' schemas where the package `kubernetes-validate` is.
"""

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import setup_kubernetes
from shared.runtime.settings import ENV_PREFIX, NAMES
from tests.docs.blocks import blocks
from tests.docs.test_watching import ADDED, ASKED, ROOT, known

FOLDER = ROOT / "deploy" / "kubernetes"
BASE = FOLDER / "base"
OVERLAYS = FOLDER / "overlays"
KUSTOMIZATIONS = sorted(path.parent for path in FOLDER.rglob("kustomization.yaml"))
BUILT = [BASE, *sorted(path for path in OVERLAYS.iterdir())]
IMAGES = {"symphony-control", "symphony-worker"}
BY_OTHERS = {"huggingface"}  # Secrets that docs/kubernetes.md tells how to make
GENERATED = re.compile(r"-[a-z0-9]{10}$")  # kustomize's, behind the name of a ConfigMap
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
PRODUCTION = ROOT / "docs" / "production.md"
SCHEMAS = "1.32"

Objects = list[dict[str, Any]]


def documents(path: Path) -> Objects:
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


@cache
def built(folder: Path) -> str:
    """What kustomize makes of a folder."""
    if (kubectl := shutil.which("kubectl")) is not None:
        command = [kubectl, "kustomize", str(folder)]
    elif (kustomize := shutil.which("kustomize")) is not None:
        command = [kustomize, "build", str(folder)]
    else:
        pytest.skip("neither kubectl nor kustomize is installed")
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def as_written() -> Objects:
    """What the base's own files hold, and the ConfigMaps that it generates."""
    base = documents(BASE / "kustomization.yaml")[0]
    found = [each for name in base["resources"] for each in documents(BASE / name)]
    for generated in base["configMapGenerator"]:
        data = dict(literal.split("=", 1) for literal in generated["literals"])
        metadata = {"name": generated["name"]}
        found.append({"kind": "ConfigMap", "metadata": metadata, "data": data})
    return found


@pytest.fixture(params=["as written", *BUILT], ids=lambda p: p if isinstance(p, str) else p.name)
def objects(request: pytest.FixtureRequest) -> Objects:
    if isinstance(request.param, str):
        return as_written()
    return [each for each in yaml.safe_load_all(built(request.param)) if each is not None]


def of_kind(objects: Objects, *kinds: str) -> Objects:
    return [each for each in objects if each["kind"] in kinds]


def workloads(objects: Objects) -> Objects:
    return of_kind(objects, "Deployment", "StatefulSet", "Job")


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    return pod


def containers_of(workload: dict[str, Any]) -> Objects:
    pod = pod_of(workload)
    return [*pod.get("initContainers", []), *pod["containers"]]


def containers(objects: Objects) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for workload in workloads(objects):
        for container in containers_of(workload):
            yield workload, container


def chosen(objects: Objects, labels: dict[str, str]) -> Objects:
    """Workloads whose pods have all these labels."""
    found = []
    for workload in workloads(objects):
        theirs = workload["spec"]["template"]["metadata"]["labels"]
        if labels.items() <= theirs.items():
            found.append(workload)
    return found


def ports_of(workload: dict[str, Any]) -> dict[str, int]:
    ports = [p for each in containers_of(workload) for p in each.get("ports", [])]
    assert len({p["name"] for p in ports}) == len(ports), workload["metadata"]["name"]
    assert len({p["containerPort"] for p in ports}) == len(ports), workload["metadata"]["name"]
    return {p["name"]: p["containerPort"] for p in ports}


def settings_of(container: dict[str, Any], objects: Objects) -> dict[str, Any]:
    maps = {plain(each): each["data"] for each in of_kind(objects, "ConfigMap")}
    found: dict[str, Any] = {}
    for source in container.get("envFrom", []):
        found |= maps[GENERATED.sub("", source["configMapRef"]["name"])]
    return found | {each["name"]: each.get("value") for each in container.get("env", [])}


def plain(thing: dict[str, Any]) -> str:
    name: str = thing["metadata"]["name"]
    return GENERATED.sub("", name)


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=lambda path: path.name)
def test_every_file_is_named_and_every_name_is_a_file(folder: Path) -> None:
    (kustomization,) = documents(folder / "kustomization.yaml")
    assert kustomization["namespace"] == setup_kubernetes.NAMESPACE
    patches = [each["path"] for each in kustomization.get("patches", []) if "path" in each]
    named = [*kustomization["resources"], *patches]
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == {name for name in named if not name.startswith("..")}
    for name in named:
        path = folder / name
        assert path.is_file() or (path / "kustomization.yaml").is_file(), name
        if path.is_file():
            assert all({"apiVersion", "kind", "metadata"} <= set(each) for each in documents(path))
    images = {image["name"] for image in kustomization.get("images", [])}
    renamed = {
        image["newName"]
        for name in kustomization["resources"]
        if (folder / name).is_dir()
        for image in documents(folder / name / "kustomization.yaml")[0].get("images", [])
    }
    assert images in (set(), IMAGES) or images <= renamed


def test_selectors_choose_pods_that_there_are(objects: Objects) -> None:
    for workload in of_kind(objects, "Deployment", "StatefulSet"):
        assert chosen(objects, workload["spec"]["selector"]["matchLabels"]) == [workload]
        for spread in pod_of(workload).get("topologySpreadConstraints", []):
            assert chosen(objects, spread["labelSelector"]["matchLabels"]) == [workload]
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert len(chosen(objects, budget["spec"]["selector"]["matchLabels"])) == 1
    for policy in of_kind(objects, "NetworkPolicy"):
        selectors = [policy["spec"]["podSelector"]]
        for rule in policy["spec"].get("ingress", []):
            selectors += [
                each["podSelector"] for each in rule.get("from", []) if "podSelector" in each
            ]
        for selector in selectors:
            wanted = dict(selector.get("matchLabels", {}))
            assert chosen(objects, wanted), policy["metadata"]["name"]
            for expression in selector.get("matchExpressions", []):
                for value in expression["values"]:
                    assert chosen(objects, {expression["key"]: value}), value


def test_ports_that_are_named_are_there(objects: Objects) -> None:
    for service in of_kind(objects, "Service"):
        (workload,) = chosen(objects, service["spec"]["selector"])
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports_of(workload))
    names = {service["metadata"]["name"] for service in of_kind(objects, "Service")}
    for workload in of_kind(objects, "StatefulSet"):
        assert workload["spec"]["serviceName"] in names
    for policy in of_kind(objects, "NetworkPolicy"):
        theirs: set[Any] = set()
        for workload in chosen(objects, policy["spec"]["podSelector"].get("matchLabels", {})):
            theirs |= set(ports_of(workload)) | set(ports_of(workload).values())
        for rule in policy["spec"].get("ingress", []):
            assert {port["port"] for port in rule["ports"]} <= theirs
    for workload, container in containers(objects):
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in PROBES:
            http = container.get(probe, {}).get("httpGet")
            assert http is None or http["port"] in ports, workload["metadata"]["name"]
        settings = settings_of(container, objects)
        for name in ("METRICS_PORT", "HTTP_PORT"):
            if (port := settings.get(ENV_PREFIX + name)) is not None:
                assert int(port) in {each["containerPort"] for each in container["ports"]}


def test_only_frontends_can_be_reached_from_outside(objects: Objects) -> None:
    closed = [p for p in of_kind(objects, "NetworkPolicy") if not p["spec"]["podSelector"]]
    assert [policy["spec"] for policy in closed] == [
        {"podSelector": {}, "policyTypes": ["Ingress"]}
    ]
    open_to_all = {
        policy["metadata"]["name"]
        for policy in of_kind(objects, "NetworkPolicy")
        for rule in policy["spec"].get("ingress", [])
        if "from" not in rule
    }
    assert open_to_all == {"frontend"}
    for service in of_kind(objects, "Service"):
        assert service["spec"].get("type", "ClusterIP") == "ClusterIP"


def test_every_mount_has_its_volume(objects: Objects) -> None:
    for workload in workloads(objects):
        volumes = {volume["name"] for volume in pod_of(workload).get("volumes", [])}
        claims = workload["spec"].get("volumeClaimTemplates", [])
        volumes |= {claim["metadata"]["name"] for claim in claims}
        used = set()
        for container in containers_of(workload):
            mounts = container.get("volumeMounts", [])
            used |= {mount["name"] for mount in mounts}
            paths = [mount["mountPath"] for mount in mounts]
            assert len(set(paths)) == len(paths)
            for name, value in settings_of(container, objects).items():
                if name.endswith("_FILE") and value is not None:
                    assert str(Path(value).parent) in paths, (container["name"], name)
        assert used == volumes, workload["metadata"]["name"]


def test_settings_are_ours_and_differ_where_they_must(objects: Objects) -> None:
    for each in of_kind(objects, "ConfigMap"):
        assert {name for name in each["data"] if name.startswith(ENV_PREFIX)} <= NAMES
    for workload, container in containers(objects):
        settings = settings_of(container, objects)
        assert {name for name in settings if name.startswith(ENV_PREFIX)} <= NAMES
        assert pod_of(workload)["enableServiceLinks"] is False  # SYMPHONY_... of a Service
        if "services." in str(container.get("command")):
            assert ENV_PREFIX + "INSTANCE" in settings  # by which cli.health knows it
    (host,) = [each for each in workloads(objects) if each["metadata"]["name"] == "host"]
    theirs = [settings_of(container, objects) for container in containers_of(host)]
    assert {each[ENV_PREFIX + "HOST_ID"] for each in theirs} == {"$(POD_NAME)"}
    for name in ("INSTANCE", "METRICS_PORT"):
        assert len({each[ENV_PREFIX + name] for each in theirs}) == len(theirs)
    kvstore = theirs[0]
    port = int(kvstore["SYMPHONY_PEER_LISTEN"].rpartition(":")[2])
    assert ports_of(host)["peers"] == port
    service = host["spec"]["serviceName"]
    assert kvstore["SYMPHONY_PEER_ADDRESS"] == f"$(POD_NAME).{service}:{port}"


def test_every_container_is_probed_limited_and_confined(objects: Objects) -> None:
    for workload, container in containers(objects):
        name = container["name"]
        pod = pod_of(workload)
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
        # Else each start would open the kvstore's folders to the group.
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
        confined = container["securityContext"]
        assert confined["allowPrivilegeEscalation"] is False, name
        assert confined["readOnlyRootFilesystem"] is True, name
        assert confined["capabilities"] == {"drop": ["ALL"]}, name
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
        assert "memory" in container["resources"]["limits"], name
        if workload["kind"] == "Job":
            continue
        assert pod["terminationGracePeriodSeconds"] > 0
        for probe in PROBES:
            assert container[probe]["timeoutSeconds"] > 0, (name, probe)
            command = " ".join(container[probe].get("exec", {}).get("command", []))
            for service in re.findall(r"cli\.health (\w+)", command):
                assert f"services.{service}" in str(container.get("command"))


def test_arenas_fit_into_memory(objects: Objects) -> None:
    (host,) = [each for each in workloads(objects) if each["metadata"]["name"] == "host"]
    units = {"Mi": 1024**2, "Gi": 1024**3}

    def size(text: str) -> int:
        return int(text[:-2]) * units[text[-2:]]

    (arena,) = [each for each in pod_of(host)["volumes"] if each["name"] == "arena"]
    assert arena["emptyDir"]["medium"] == "Memory"
    kvstore = containers_of(host)[0]
    settings = settings_of(kvstore, objects)
    num_bytes = int(settings["SYMPHONY_ARENA_BYTES"])
    assert num_bytes <= 0.9 * size(arena["emptyDir"]["sizeLimit"])
    assert num_bytes < size(kvstore["resources"]["requests"]["memory"])
    assert settings["SYMPHONY_ARENA_DIR"].startswith("/arena/")
    for container in containers_of(host):  # workers find it under the kvstore's path
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert (mounts["arena"], mounts["data"]) == ("/arena", "/data")
    (claim,) = host["spec"]["volumeClaimTemplates"]
    disk = size(claim["spec"]["resources"]["requests"]["storage"])
    assert 1.25 * int(settings["SYMPHONY_DISK_BYTES_MAX"]) < disk


def made(tmp_path: Path) -> dict[str, dict[str, str]]:
    keys = tmp_path / "keys.json"
    keys.write_text('[{"key": "k", "tenant": "acme"}]')
    items = setup_kubernetes.make_secrets(tmp_path / "house", keys)
    assert items == setup_kubernetes.make_secrets(tmp_path / "house", keys)  # kept
    assert {each["metadata"]["namespace"] for each in items} == {setup_kubernetes.NAMESPACE}
    return {each["metadata"]["name"]: each["stringData"] for each in items}


def test_what_is_referred_to_is_made_or_documented(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_API_KEYS_FILE", "")  # put back afterwards
    secrets = made(tmp_path)
    maps = {each["metadata"]["name"] for each in of_kind(objects, "ConfigMap")}
    guide = (ROOT / "docs" / "kubernetes.md").read_text()
    for workload in workloads(objects):
        asked = {v["secret"]["secretName"] for v in pod_of(workload)["volumes"] if "secret" in v}
        assert asked <= set(secrets)
        for container in containers_of(workload):
            for source in container.get("envFrom", []):
                assert source["configMapRef"]["name"] in maps
            for each in container.get("env", []):
                if "secretKeyRef" in (source := each.get("valueFrom", {})):
                    assert source["secretKeyRef"]["optional"]
                    assert source["secretKeyRef"]["name"] in BY_OTHERS
                    assert f"generic {source['secretKeyRef']['name']}" in guide
            mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
            files = {
                f"{mounts[v['name']]}/{name}"
                for v in pod_of(workload)["volumes"]
                if "secret" in v and v["name"] in mounts
                for name in secrets[v["secret"]["secretName"]]
            }
            if "services." in str(container.get("command")):
                for name, value in settings_of(container, objects).items():
                    assert not name.endswith("_FILE") or value in files, (container["name"], name)


def test_servers_of_the_cluster_are_the_pods() -> None:
    (nats,) = [
        each
        for each in documents(BASE / "nats.yaml")
        if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "nats"
    ]
    names = [f"nats-{number}" for number in range(nats["spec"]["replicas"])]
    port = ports_of(nats)["cluster"]
    servers = tuple(f"{name}.{nats['spec']['serviceName']}:{port}" for name in names)
    assert servers == setup_kubernetes.NATS_SERVERS
    (job,) = [each for each in documents(BASE / "nats.yaml") if each["kind"] == "Job"]
    assert containers_of(job)[0]["command"][-1] == str(len(names))


def test_secrets_can_be_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SYMPHONY_API_KEYS_FILE", "")
    folder = tmp_path / "house"
    monkeypatch.setattr("sys.argv", ["setup_kubernetes", str(folder)])
    assert setup_kubernetes.main() == 1  # no keys
    assert "keys" in capsys.readouterr().err
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "keys.json").write_text("[]")
    assert setup_kubernetes.main() == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    assert all(each["kind"] == "Secret" and each["stringData"] for each in listed["items"])


def test_triggers_and_alarms_ask_for_metrics_that_there_are() -> None:
    (scaled,) = documents(OVERLAYS / "keda" / "scaling.yaml")
    metrics = known()
    target = scaled["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", "host")
    for trigger in scaled["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        asked = ASKED.findall(query)
        assert asked and query.count("(") == query.count(")")
        for name, matchers in asked:
            labels = set(re.findall(r"(\w+)\s*[=!]", matchers))
            assert labels <= metrics[name] | ADDED, name
    (rules,) = documents(OVERLAYS / "watch" / "rules.yaml")
    (ours,) = documents(ROOT / "deploy" / "prometheus" / "rules.yml")
    assert rules["spec"]["groups"] == ours["groups"]


def test_prometheus_finds_every_metrics_port() -> None:
    (monitor,) = documents(OVERLAYS / "watch" / "pods.yaml")
    asked = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
    objects: Objects = [each for each in yaml.safe_load_all(built(OVERLAYS / "watch")) if each]
    (policy,) = [
        each for each in of_kind(objects, "NetworkPolicy") if each["metadata"]["name"] == "metrics"
    ]
    let_in = {port["port"] for port in policy["spec"]["ingress"][0]["ports"]}
    ports: dict[str, int] = {}
    for workload in workloads(objects):
        ports |= {n: p for n, p in ports_of(workload).items() if n.startswith("metrics")}
    assert asked == set(ports)
    assert let_in == set(ports.values())


@pytest.mark.parametrize("folder", BUILT, ids=lambda path: path.name)
def test_kubernetes_schemas_hold(folder: Path) -> None:
    try:
        validator = importlib.import_module("kubernetes_validate")
    except ImportError:
        pytest.skip("kubernetes-validate is not installed")
    for each in yaml.safe_load_all(built(folder)):
        try:
            validator.validate(each, SCHEMAS, strict=True)
        except validator.SchemaNotFoundError:
            assert each["kind"] in {"PodMonitor", "PrometheusRule", "ScaledObject"}


def test_the_overlay_of_a_plan_sets_what_plan_printed(tmp_path: Path) -> None:
    overlay, compose = (yaml.safe_load(each.text) for each in blocks(PRODUCTION, {"yaml"}))
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    mine = tmp_path / "kubernetes" / "overlays" / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    objects = [each for each in yaml.safe_load_all(built(mine)) if each is not None]
    (host,) = (each for each in workloads(objects) if each["metadata"]["name"] == "host")
    (kvstore,) = (each for each in containers_of(host) if each["name"] == "kvstore")
    env = {each["name"]: each.get("value") for each in kvstore["env"]}
    volumes = {each["name"]: each for each in pod_of(host)["volumes"]}
    assert host["spec"]["replicas"] == 2
    set_in_compose = compose["services"]["kvstore"]["environment"]
    assert set_in_compose.items() <= env.items()
    assert volumes["arena"]["emptyDir"]["sizeLimit"] == "192Gi"
    assert int(env["SYMPHONY_ARENA_BYTES"]) <= 0.9 * 192 * 2**30
    assert int(env["SYMPHONY_ARENA_BYTES"]) + 2**30 <= 174 * 2**30
    workers = [
        each["data"]
        for each in of_kind(objects, "ConfigMap")
        if "worker" in each["metadata"]["name"]
    ]
    assert compose["services"]["worker-gpu"]["environment"].items() <= workers[0].items()
