"""Days on which files of adapters rot, and processes are killed while one is added."""

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from loadtest.adapters import Recipe, modules_in, write_adapter
from services.worker.models.demo_adapters import make_demo_adapter
from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.e2e.replies import Reply
from tests.e2e.test_adapters import hash_of, letters, made, said, sentence, upload

KILLS = 7  # each is answered later by the supervisor
ADD_S = 0.1  # very roughly


@pytest.mark.slow
def test_a_kvstore_killed_while_it_adds_has_it_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    rng, num_there = random.Random(7), 0
    with Cluster(tmp_path / "data", "--emulate", "zero") as cluster:
        upload(cluster, "owl", made(tmp_path / "owl", 100))
        owl = said(cluster, "owl")
        for number in range(KILLS):
            name, folder = f"new{number}", made(tmp_path / f"{number}", 200 + number)
            adding = threading.Thread(target=try_upload, args=(cluster, name, folder))
            adding.start()
            time.sleep(rng.random() * ADD_S)
            cluster.wait_restarted("kvstore", cluster.kill("kvstore"))
            adding.join()
            root = cluster.data_dir / "adapters"
            assert not list(root.rglob(".new*"))
            assert said(cluster, "owl") == owl
            is_there = said(cluster, name) != "model_not_found"
            num_there += is_there
            if not is_there:
                upload(cluster, name, folder)
            assert said(cluster, name).startswith(sentence(hash_of(cluster, name)).strip())
            assert len(list((root / "names").iterdir())) >= number + 2
    assert 0 < num_there < KILLS, "nothing was met in the middle"


def try_upload(cluster: Cluster, name: str, folder: Path) -> None:
    """Send an adapter's files along, whatever is answered, if anything is."""
    parts = [(path.name, (path.name, path.read_bytes())) for path in folder.iterdir()]
    with suppress(httpx.TimeoutException):
        httpx.put(f"{cluster.url}/v1/adapters/{name}", files=parts, timeout=3)


@pytest.mark.slow
def test_damaged_files_cost_the_turns_of_their_adapter_only(tmp_path: Path) -> None:
    with Cluster(tmp_path / "data") as cluster, cluster.client() as client:
        base = cluster.data_dir / "models" / DEMO_MODEL_ID
        upload(cluster, "vowels", make_demo_adapter("vowels", base, tmp_path / "vowels"))
        upload(cluster, "torn", write_adapter(tmp_path / "torn", modules_in(base), Recipe()))
        stored = (
            cluster.data_dir / "adapters" / hash_of(cluster, "torn") / "adapter_model.safetensors"
        )
        good = stored.read_bytes()
        stored.write_bytes(good[:-4] + b"\0\0\0\0")
        answers: list[str] = []
        asking = threading.Thread(target=lambda: answers.append(said(cluster, "torn")))
        asking.start()
        num_others = 0
        while asking.is_alive():
            assert set(letters(Reply(client, 20, model="vowels").read_to_end())) <= set("aeiou")
            Reply(client, 20).read_to_end()
            num_others += 1
        assert answers == ["adapter_unavailable"] and num_others > 1
        stored.write_bytes(good)
        assert said(cluster, "torn") != "adapter_unavailable", "it is read anew"
