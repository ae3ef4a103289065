"""What a search of the site finds first."""

from typing import Any

TERMS = {
    "quickstart.md": ("quickstart", "installation"),
    "chat.md": ("typing",),
    "api.md": (
        "advisory", "advisories", "hints", "sessions", "tools", "embeddings", "reranking",
        "tenants", "quota", "limits",
    ),
    "adapters.md": ("adapters", "lora", "peft"),
    "agents.md": ("agents", "workflows"),
    "nats.md": ("nats", "subjects"),
    "operations.md": ("settings", "metrics", "logs", "traces", "dashboard", "emulate", "arena"),
    "engines.md": ("vllm", "engines"),
    "gpu.md": ("gpu", "cuda"),
    "models.md": ("models", "gguf", "quantization", "safetensors"),
    "compose.md": ("docker", "compose", "containers"),
    "kubernetes.md": ("kubernetes", "kustomize"),
    "planning.md": ("planning", "capacity"),
    "loadtest.md": ("ttft", "tpot"),
    "reliability.md": ("crashes", "chaos"),
    "architecture.md": (
        "kvstores", "trackers", "schedulers", "workers", "frontends", "placement", "prefetching",
        "eviction", "blocks", "pages", "tiers",
    ),
}  # fmt: skip
"""Terms, each at the page that explains it, which a search puts first: as long as people may write
them, since the beginning of one finds it."""
SELDOM = {"http-reference.md", "nats-reference.md", "contributing.md", "benchmarks.md"}
"""Pages that name every term and explain few: last among equals, as those of papers' figures."""
BOOST = 0.1


def found_by(name: str) -> dict[str, Any]:
    """What the theme reads of a page, as if the page began with it.

    >>> found_by("gpu.md"), found_by("nats-reference.md")
    ({'tags': ['gpu', 'cuda']}, {'tags': [], 'search': {'boost': 0.1}})
    """
    found: dict[str, Any] = {"tags": list(TERMS.get(name, ()))}
    if name in SELDOM or name.endswith("-figures.md"):
        found["search"] = {"boost": BOOST}
    return found
