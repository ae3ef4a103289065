"""``python -m services.tracker``"""

from services.tracker.config import TrackerConfig
from services.tracker.service import main
from shared.service import run

if __name__ == "__main__":
    run("tracker", TrackerConfig, main)
