"""Instructor: forms by tools and by `json_schema`."""

import json

import pytest

from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster
from tests.frameworks.common import KEY, City, needs

pytestmark = needs("instructor")


def test_instructor(cluster: Cluster) -> None:
    instructor = pytest.importorskip("instructor")
    from openai import OpenAI

    with OpenAI(base_url=f"{cluster.url}/v1", api_key=KEY) as client:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            made = instructor.from_openai(client, mode=mode)
            found = made.chat.completions.create(
                model=DEMO_MODEL_ID, response_model=City, max_retries=0, max_tokens=900,
                temperature=0, messages=[{"role": "user", "content": "Where are you?"}],
            )  # fmt: skip
            assert isinstance(found, City) and json.loads(found.model_dump_json())
