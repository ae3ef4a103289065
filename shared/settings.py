"""Every variable of ours by name, so that a misspelled one is refused and not ignored.

The names are written out, and a test holds them equal to the fields of the services' settings: a
service knows the others' names without importing them.
"""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic_settings import BaseSettings, DotEnvSettingsSource

from shared.errors import ConfigError
from shared.urls import HIDDEN, hide_password

ENV_PREFIX = "SYMPHONY_"
ENV_FILE = "SYMPHONY_ENV_FILE"

SETTINGS = frozenset({
    # all services
    "NATS_URL", "NATS_NKEY_FILE", "NATS_CA_FILE", "REDIS_URL", "REDIS_PASSWORD_FILE",
    "REDIS_CA_FILE", "HOST_ID", "INSTANCE", "DATA_DIR", "LOG_LEVEL", "METRICS_PORT",
    "METRICS_ADDRESS", "OTLP_ENDPOINT",
    # frontend
    "HTTP_ADDRESS", "HTTP_PORT", "HTTP_CERT_FILE", "HTTP_KEY_FILE", "API_KEYS_FILE",
    "ALLOW_ANONYMOUS", "ALLOW_HOSTS", "CORS_ORIGINS", "BODY_BYTES_MAX", "BODY_VALUES_MAX",
    "TEXT_PROCESSES", "TEXT_LIMIT_S", "REQUESTS_MAX", "SLOW_REQUEST_S", "STALLED_READER_S",
    "CONNECTIONS_PER_ADDRESS", "MAX_TOKENS_DEFAULT", "REASONING_PARSER", "TOOL_PARSER",
    "METRICS_OF_HOUSE", "TRACE_SHARE", "TRACES_PER_S",
    "SERVED_MODEL_NAMES", "DEPLOYED_MODELS", "SESSION_EXPIRY_S", "RESUBMIT_UNPULLED_S",
    "RESUBMIT_SILENT_S", "GIVE_UP_S", "TURN_S_MAX",
    "SCHEDULER_SHARDS", "INPUTS_MAX", "JOBS_MAX", "JOB_BYTES_MAX", "IMAGE_BYTES_MAX",
    "IMAGE_PIXELS_MAX", "DRAIN_S", "TENANT_TURNS_MAX", "TENANT_WAITING_TOKENS_MAX",
    "TENANT_JOBS_MAX", "TENANT_JOB_BYTES_MAX", "TENANT_SESSIONS_MAX", "TENANT_SESSION_BYTES_MAX",
    "TENANT_PRIORITY", "TENANT_ADAPTER_CHANGES_PER_MINUTE", "TENANT_KV_EXPIRY_S",
    "TENANT_KV_EXPIRY_S_MAX",
    # frontend and tracker
    "HINTS_PER_CLIENT", "HINTS_PER_TENANT",
    # frontend, scheduler and tracker
    "TRACKER_SHARDS",
    # kvstore and worker
    "EVICTION",
    # kvstore
    "ARENA_DIR", "ARENA_BYTES", "DISK_BYTES_MAX", "DISK_BYTES_PER_S", "EXPIRY_S", "ADAPTER_DIRS",
    "ADAPTER_BYTES_MAX", "ADAPTER_HEADER_BYTES_MAX", "ADAPTER_TENSORS_MAX", "ADAPTER_KEEP_S",
    "TENANT_ADAPTERS_MAX", "TENANT_ADAPTER_BYTES_MAX", "ADAPTERS_MAX", "ADAPTER_DISK_BYTES_MAX",
    "PEER_SECRET_FILE", "PEER_LISTEN", "PEER_ADDRESS", "PEER_BYTES_PER_S", "PEER_CERT_FILE",
    "PEER_KEY_FILE", "PEER_CA_FILE", "OBJECTS_URL", "OBJECTS_BYTES_MAX", "OBJECTS_EXPIRY_S",
    "OBJECTS_REST_S", "OBJECTS_BYTES_PER_S", "OBJECTS_COMPRESSION",
    # scheduler
    "SCHEDULER_POLICY", "SCHEDULER_LEARNING_S", "SCHEDULER_DEAD_AFTER_S",
    "SCHEDULER_PLACEMENT_WAIT_S", "SCHEDULER_AFFINITY_MARGIN", "SCHEDULER_TURNS_MAX",
    "SCHEDULER_QUEUE_MAX", "SCHEDULER_LEASE", "SCHEDULER_LEASE_BEAT_MS", "SCHEDULER_LEASE_TTL_MS",
    "SCHEDULER_ROLE", "SCHEDULER_SHARD", "BATCH_POLICY", "BATCH_LEARNING_MS", "BATCH_CTRL_MS",
    "BATCH_DATA_MS", "BATCH_SLACK_MS", "BATCH_RETURN_MS", "BATCH_OVERDUE_MS", "BATCH_JOBS_MAX",
    # tracker
    "TRACKER_TTL_S", "TRACKER_SLACK_S", "TRACKER_RETRY_S", "TRACKER_KEEP_S",
    "TRACKER_ADVISORIES_MAX", "TRACKER_TENANT_ADVISORIES_MAX", "TRACKER_QUEUE_MAX",
    "AGENT_GRAPHS",
    "TRACKER_ACT_CHANCE_MIN", "TRACKER_SHARD",
    # worker
    "MODELS", "TASKS", "EMULATE", "TRUE_PAGES", "DEVICE", "DTYPE", "KV_BYTES", "GPU_MEMORY_SHARE",
    "KV_STORED_DTYPE", "NUM_THREADS", "LAYERS", "PREFILL_TOKENS_MAX", "TURNS_RUNNING_MAX",
    "PREFILL_ADMISSION", "LAYERWISE", "SLO_TTFT_MS", "LORA_START", "ASSIST_HELPERS", "LINK_MB_S",
    "WRITE_BEHIND", "REPORT_INTERVAL_MS", "DRAIN_MS", "ONESHOT_VARIANTS", "ONESHOT_BATCH_MAX",
    "ONESHOT_SLO_MS", "ONESHOT_PROFILE_S", "ONESHOT_QUEUE_MAX", "ONESHOT_PULL_MS", "COOPERATIVE",
    "MAX_MODEL_LEN",
    # the launcher
    "LOG_BYTES_MAX", "STATUS_INTERVAL_S", "STUCK_AFTER_S", "REDIS_BYTES_MAX",
})  # fmt: skip
"""Fields of the settings classes."""

OTHERS = frozenset({
    "ENV_FILE",  # where more of these are
    "API_KEY",  # `symphony chat` sends it
    "PYTHON", "VENV", "TORCH_SPEC",  # what is installed, and where
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
    # Without the prefix, which makes all of them alike.
    known = sorted(SETTINGS | OTHERS)
    near = difflib.get_close_matches(name.removeprefix(ENV_PREFIX), known, n=1, cutoff=0.6)
    hint = f": do you mean {ENV_PREFIX}{near[0]}?" if near else ""
    if any(_is_secret(ENV_PREFIX + other) for other in near):
        value = HIDDEN  # a misspelled key is a key all the same
    raise ConfigError(f"{shown(name, value)}{where}: no such setting{hint}")


def _is_secret(name: str) -> bool:
    return name.removeprefix(ENV_PREFIX) not in SETTINGS and bool(_SECRET_NAME.search(name))
