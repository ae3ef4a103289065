"""``python -m services.frontend``."""

from services.frontend.config import FrontendConfig
from services.frontend.service import main
from shared.service import run

if __name__ == "__main__":
    run("frontend", FrontendConfig, main)
