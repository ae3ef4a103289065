"""Certificates for tests."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """One that vouches for itself, for 127.0.0.1, and its key."""

    cert: Path
    key: Path


def make_certificate(folder: Path, name: str) -> Certificate:
    """In a folder that is made for it; for a name such as ``IP:127.0.0.1``."""
    folder.mkdir()
    made = Certificate(folder / "cert.pem", folder / "key.pem")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "2", "-subj", "/CN=symphony", "-addext", f"subjectAltName={name}",
            "-keyout", str(made.key), "-out", str(made.cert),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return made
