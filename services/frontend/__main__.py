"""``python -m services.frontend``."""

from services.frontend.config import FrontendConfig
from services.frontend.rendering.without_torch import without_torch
from services.frontend.service import main
from shared.service import run

if __name__ == "__main__":
    without_torch()
    run("frontend", FrontendConfig, main)
