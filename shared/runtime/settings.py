"""Every variable of ours by name, so that a misspelled one is refused and not ignored.

The names are written out, and a test holds them equal to the fields of the services' settings: a
service knows the others' names without importing them.
"""

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic_settings import BaseSettings, DotEnvSettingsSource

from shared.errors import ConfigError
from shared.runtime.urls import HIDDEN, hide_password

ENV_PREFIX = "SYMPHONY_"
ENV_FILE = "SYMPHONY_ENV_FILE"
DEVELOPMENT = "SYMPHONY_DEVELOPMENT"

SETTINGS = frozenset({
    # all services
    "NATS_URL", "NATS_NKEY_FILE", "NATS_CA_FILE", "REDIS_URL", "REDIS_PASSWORD_FILE",
    "REDIS_CA_FILE", "HOST_ID", "INSTANCE", "DATA_DIR", "LOG_LEVEL", "METRICS_PORT",
    "METRICS_ADDRESS", "OTLP_ENDPOINT",
    # frontend
    "HTTP_ADDRESS", "HTTP_PORT", "HTTP_CERT_FILE", "HTTP_KEY_FILE", "API_KEYS_FILE",
    "ALLOW_ANONYMOUS", "ALLOW_HOSTS", "CORS_ORIGINS", "BODY_BYTES_MAX", "TEXT_PROCESSES",
    "REQUESTS_MAX", "CONNECTIONS_PER_ADDRESS", "MAX_TOKENS_DEFAULT", "REASONING_PARSER",
    "TOOL_PARSER", "METRICS_OF_HOUSE", "TRACE_SHARE", "SERVED_MODEL_NAMES", "DEPLOYED_MODELS",
    "SESSION_EXPIRY_S", "TURN_S_MAX", "SCHEDULER_SHARDS", "JOB_BYTES_MAX", "DRAIN_S",
    "TENANT_TURNS_MAX", "TENANT_SESSIONS_MAX", "TENANT_SESSION_BYTES_MAX", "TENANT_PRIORITY",
    "TENANT_KV_EXPIRY_S", "TENANT_KV_EXPIRY_S_MAX",
    # frontend and tracker
    "HINTS_PER_CLIENT", "HINTS_PER_TENANT",
    # frontend, scheduler and tracker
    "TRACKER_SHARDS",
    # kvstore
    "ARENA_DIR", "ARENA_BYTES", "DISK_BYTES_MAX", "DISK_BYTES_PER_S", "EXPIRY_S", "ADAPTER_DIRS",
    "ADAPTER_BYTES_MAX", "TENANT_ADAPTER_BYTES_MAX", "ADAPTER_DISK_BYTES_MAX", "PEER_SECRET_FILE",
    "PEER_LISTEN", "PEER_ADDRESS", "PEER_BYTES_PER_S", "PEER_CERT_FILE", "PEER_KEY_FILE",
    "PEER_CA_FILE", "OBJECTS_URL", "OBJECTS_BYTES_MAX", "OBJECTS_EXPIRY_S", "OBJECTS_BYTES_PER_S",
    "OBJECTS_COMPRESSION",
    # scheduler
    "SCHEDULER_POLICY", "SCHEDULER_PLACEMENT_WAIT_S", "SCHEDULER_ROLE", "SCHEDULER_SHARD",
    "BATCH_POLICY",
    # tracker
    "TRACKER_TENANT_ADVISORIES_MAX", "AGENT_GRAPHS", "TRACKER_SHARD",
    # worker
    "ENGINE", "VLLM_ARGS", "MODELS", "TASKS", "EMULATE", "TRUE_PAGES", "DEVICE", "DTYPE",
    "KV_BYTES", "GPU_MEMORY_SHARE", "TENSOR_PARALLEL",
    "KV_STORED_DTYPE", "NUM_THREADS", "LAYERS", "PREFILL_TOKENS_MAX", "TURNS_RUNNING_MAX",
    "PREFILL_ADMISSION", "SLO_TTFT_MS", "DRAIN_MS", "ONESHOT_VARIANTS", "ONESHOT_BATCH_MAX",
    "ONESHOT_SLO_MS", "ONESHOT_BYTES", "MAX_MODEL_LEN",
    # the launcher
    "LOG_BYTES_MAX", "REDIS_BYTES_MAX",
})  # fmt: skip
"""Fields of the settings classes that variables set."""

DEVELOPMENT_FIELDS = frozenset({
    "adapter_keep_s", "adapters_max", "body_values_max", "disk_read_mb_s",
    "eviction", "give_up_s", "image_bytes_max", "image_pixels_max", "inputs_max", "jobs_max",
    "layerwise", "link_mb_s", "lora_start", "num_hosts_here", "objects_rest_s", "oneshot_profile_s",
    "prompt_sent_bytes_max", "report_interval_ms", "resubmit_silent_s", "resubmit_unpulled_s",
    "scheduler_dead_after_s", "scheduler_learning_s", "scheduler_lease", "scheduler_lease_beat_ms",
    "scheduler_lease_ttl_ms", "scheduler_queue_max", "slow_request_s", "stalled_reader_s",
    "status_interval_s", "stuck_after_s", "tenant_adapter_changes_per_minute",
    "tenant_adapters_max", "text_limit_s", "tracker_queue_max", "tracker_retry_s",
    "tracker_slack_s", "tracker_ttl_s", "write_behind",
})  # fmt: skip
"""Fields of the settings classes that no user needs to set: tests and benchmarks set them in the
constructor, or for processes that they start in the JSON object of ``SYMPHONY_DEVELOPMENT``.
"""

OF_KEYS_FILE = "what the tenant's `limits` in the API keys file say"

REMOVED = {
    "ADAPTERS_MAX": "100000", "ADAPTER_HEADER_BYTES_MAX": "4 MiB", "ADAPTER_KEEP_S": "7200",
    "ADAPTER_TENSORS_MAX": "16384", "ASSIST_HELPERS": "one a core, beside a GPU at most eight",
    "BATCH_CTRL_MS": "2", "BATCH_DATA_MS": "0.05", "BATCH_JOBS_MAX": "200000",
    "BATCH_LEARNING_MS": "150", "BATCH_OVERDUE_MS": "50", "BATCH_RETURN_MS": "1",
    "BATCH_SLACK_MS": "4", "BODY_VALUES_MAX": "262144", "COOPERATIVE": "true",
    "EVICTION": "predicted",
    "GIVE_UP_S": "60", "IMAGE_BYTES_MAX": "10000000", "IMAGE_PIXELS_MAX": "40000000",
    "INPUTS_MAX": "2048", "JOBS_MAX": "65536", "LAYERWISE": "true", "LINK_MB_S": "0",
    "LORA_START": "auto", "OBJECTS_REST_S": "30", "ONESHOT_PROFILE_S": "20",
    "ONESHOT_PULL_MS": "50", "ONESHOT_QUEUE_MAX": "16", "REPORT_INTERVAL_MS": "500",
    "RESUBMIT_SILENT_S": "10", "RESUBMIT_UNPULLED_S": "3", "SCHEDULER_AFFINITY_MARGIN": "1",
    "SCHEDULER_DEAD_AFTER_S": "2.5", "SCHEDULER_LEARNING_S": "0.75", "SCHEDULER_LEASE": "auto",
    "SCHEDULER_LEASE_BEAT_MS": "250", "SCHEDULER_LEASE_TTL_MS": "2000",
    "SCHEDULER_QUEUE_MAX": "65536", "SCHEDULER_TURNS_MAX": "100000", "SLOW_REQUEST_S": "30",
    "STALLED_READER_S": "30", "STATUS_INTERVAL_S": "2", "STUCK_AFTER_S": "15",
    "TENANT_ADAPTERS_MAX": "10000", "TENANT_ADAPTER_CHANGES_PER_MINUTE": "240",
    "TENANT_JOBS_MAX": OF_KEYS_FILE, "TENANT_JOB_BYTES_MAX": OF_KEYS_FILE,
    "TENANT_WAITING_TOKENS_MAX": OF_KEYS_FILE, "TEXT_LIMIT_S": "10", "TRACES_PER_S": "20",
    "TRACKER_ACT_CHANCE_MIN": "0.1", "TRACKER_ADVISORIES_MAX": "100000", "TRACKER_KEEP_S": "600",
    "TRACKER_QUEUE_MAX": "65536", "TRACKER_RETRY_S": "1", "TRACKER_SLACK_S": "30",
    "TRACKER_TTL_S": "60", "WRITE_BEHIND": "true",
}  # fmt: skip
"""Variables of earlier releases, and the value that is now fixed."""

OTHERS = frozenset({
    "ENV_FILE",  # where more of these are
    "DEVELOPMENT",  # values of `DEVELOPMENT_FIELDS`
    "API_KEY",  # `symphony chat` sends it
    "PYTHON", "VENV", "TORCH_SPEC", "VLLM_PYTHON",  # what is installed, and where
    # of compose.yaml
    "PORT", "MODELS_DIR", "TORCH", "ARENA_SIZE", "PROMETHEUS_PORT", "GRAFANA_PORT",
    "JAEGER_PORT",
})  # fmt: skip
"""What is read by something else than a settings class."""

NAMES = frozenset(ENV_PREFIX + name for name in SETTINGS | OTHERS)

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS")


def read_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """All variables of ours, upper case: the environment's, and the env file's that it names.

    Raises:
        ConfigError: one of them is unknown, or the file cannot be read.
    """
    ours = {
        name.upper(): value
        for name, value in environ.items()
        if name.upper().startswith(ENV_PREFIX)
    }
    for name, value in ours.items():
        _check_name(name, value)
    return {**_read_file(ours.get(ENV_FILE, "")), **ours}


def as_variables(
    settings: Mapping[str, str], environ: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Variables that give a process these fields, whether users can set them or only developers.

    Args:
        environ: its other variables; what they say of constants stays, beside `settings`.

    >>> as_variables({"kv_bytes": "1", "link_mb_s": "2"})
    {'SYMPHONY_KV_BYTES': '1', 'SYMPHONY_DEVELOPMENT': '{"link_mb_s": "2"}'}
    """
    developed = {name: settings[name] for name in settings if name in DEVELOPMENT_FIELDS}
    variables = {
        ENV_PREFIX + name.upper(): value
        for name, value in settings.items()
        if name not in developed
    }
    if not developed:
        return variables
    before = development_fields(environ.get(DEVELOPMENT, ""))
    return variables | {DEVELOPMENT: json.dumps(before | developed)}


def development_fields(text: str) -> dict[str, Any]:
    """Values of `DEVELOPMENT_FIELDS` in a value of ``SYMPHONY_DEVELOPMENT``.

    Raises:
        ConfigError: it is no JSON object, or names another field.
    """
    try:
        values = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"{shown(DEVELOPMENT, text)}: no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{shown(DEVELOPMENT, text)}: must be a JSON object")
    if unknown := sorted(values.keys() - DEVELOPMENT_FIELDS):
        raise ConfigError(f"{shown(DEVELOPMENT, text)}: no such field: {', '.join(unknown)}")
    return values


def shown(name: str, value: str) -> str:
    """``NAME='value'`` for a message, without passwords and keys.

    >>> shown("SYMPHONY_INSTANCE", "a.b")
    "SYMPHONY_INSTANCE='a.b'"
    >>> shown("SYMPHONY_API_KEY", "sk-1")
    "SYMPHONY_API_KEY='***'"
    """
    if _is_secret(name):
        return f"{name}={HIDDEN!r}"
    is_url = "://" in value or name.endswith("_URL")
    return f"{name}={(hide_password(value) if is_url else value)!r}"


def _read_file(path: str) -> dict[str, str]:
    if not path:
        return {}
    where = shown(ENV_FILE, path)
    try:
        Path(path).expanduser().read_text("utf-8")  # the library takes a missing file for empty
        values = DotEnvSettingsSource(BaseSettings, env_file=path).env_vars
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: no text") from None
    found = {}
    for name, value in values.items():
        if (upper := name.upper()).startswith(ENV_PREFIX):
            if value is None:
                raise ConfigError(f"{where}: {upper} has no value: write NAME=value")
            _check_name(upper, value, f" in {path}")
            found[upper] = value
    return found


def _check_name(name: str, value: str, where: str = "") -> None:
    if name in NAMES:
        return
    if fixed := REMOVED.get(name.removeprefix(ENV_PREFIX)):
        raise ConfigError(
            f"{shown(name, value)}{where}: this setting was removed, its value is now always"
            f" {fixed}: unset it"
        )
    # Without the prefix, which makes all of them alike.
    known = sorted(SETTINGS | OTHERS)
    near = difflib.get_close_matches(name.removeprefix(ENV_PREFIX), known, n=1, cutoff=0.6)
    hint = f": do you mean {ENV_PREFIX}{near[0]}?" if near else ""
    if any(_is_secret(ENV_PREFIX + other) for other in near):
        value = HIDDEN  # a misspelled key is a key all the same
    raise ConfigError(f"{shown(name, value)}{where}: no such setting{hint}")


def _is_secret(name: str) -> bool:
    is_known = name.removeprefix(ENV_PREFIX) in SETTINGS | REMOVED.keys()
    return not is_known and bool(_SECRET_NAME.search(name))
