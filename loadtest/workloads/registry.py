"""Workloads by name."""

from loadtest.workloads import appending, burstgpt, chats, documents, metagpt, mooncake, open_loads
from loadtest.workloads.people import SPEEDS
from loadtest.workloads.script import Workload
from loadtest.workloads.traces import path_of

_PEOPLE = (SPEEDS,)
_CHATS = (*_PEOPLE, chats.DIALOGUES, chats.LENGTHS, chats.WRITTEN, burstgpt.FILE)

# With the files that each needs.
_KNOWN: dict[str, tuple[Workload, tuple[str, ...]]] = {
    "sharegpt-like": (chats.sharegpt_like, _CHATS),
    "sharegpt-busy": (chats.sharegpt_busy, _CHATS),
    "burstgpt": (burstgpt.burstgpt, (*_PEOPLE, burstgpt.FILE)),
    "burstgpt-10x": (burstgpt.burstgpt_squeezed, (*_PEOPLE, burstgpt.FILE)),
    "prefill-documents": (documents.prefill_documents, (*_CHATS, mooncake.FILE)),
    "documents": (documents.documents, (*_CHATS, mooncake.FILE)),
    "mooncake": (mooncake.mooncake, (*_CHATS, mooncake.FILE)),
    "metagpt": (metagpt.metagpt, (metagpt.FILE,)),
    "metagpt-4": (metagpt.with_files(4), (metagpt.FILE,)),
    "metagpt-8": (metagpt.with_files(8), (metagpt.FILE,)),
    "metagpt-12": (metagpt.with_files(12), (metagpt.FILE,)),
    "azure": (open_loads.azure, (open_loads.AZURE,)),
    "servegen": (open_loads.servegen, (open_loads.RATES, open_loads.LENGTHS)),
    "lmcache-agents": (
        appending.workload(appending.load_lmcache), (*_PEOPLE, appending.LMCACHE)
    ),
    "sweagent": (appending.workload(appending.load_sweagent), (*_PEOPLE, appending.SWEAGENT)),
    "taubench": (
        appending.workload(appending.load_taubench),
        (*_PEOPLE, appending.TAUBENCH, appending.SWEAGENT),
    ),
}  # fmt: skip
WORKLOADS: dict[str, Workload] = {name: make for name, (make, _) in _KNOWN.items()}


def why_absent(name: str) -> str:
    """Which files of a workload are not there; empty: all are."""
    missing = [file for file in _KNOWN[name][1] if not path_of(file).is_file()]
    return f"not in ../shared/traces: {', '.join(missing)}" if missing else ""
