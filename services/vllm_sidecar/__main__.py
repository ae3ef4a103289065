"""``python -m services.vllm_sidecar``: beside a ``vllm serve`` that nobody else of ours knows."""

from services.vllm_sidecar.config import SidecarConfig
from services.vllm_sidecar.service import main
from shared.service import run

if __name__ == "__main__":
    run("vllm-sidecar", SidecarConfig, main)
