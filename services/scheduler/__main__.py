"""``python -m services.scheduler``"""

from services.scheduler.config import SchedulerConfig
from services.scheduler.service import main
from shared.service import run

if __name__ == "__main__":
    run("scheduler", SchedulerConfig, main)
