"""``python -m services.worker.vllm_sidecar``: beside a ``vllm serve`` that is no worker's."""

from services.worker.vllm_sidecar.config import SidecarConfig
from services.worker.vllm_sidecar.service import main
from shared.service import run

if __name__ == "__main__":
    run("vllm-sidecar", SidecarConfig, main)
