"""``python -m services.kvstore``."""

from services.kvstore.config import KvstoreConfig
from services.kvstore.service import main
from shared.service import run

if __name__ == "__main__":
    run("kvstore", KvstoreConfig, main)
