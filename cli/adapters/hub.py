"""Adapters of the Hugging Face hub, ``hub:OWNER/REPO[@REVISION]``: what is needed of one is fetched
into the data folder, once a commit, and is a folder like any other from then on.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import quote

from cli.base.progress import busy_bar
from cli.models.once import made_once
from services.kvstore.config import KvstoreConfig
from shared.adapters.config import AdapterTooLarge
from shared.adapters.files import TAKEN, check_names
from shared.adapters.source import PICKLE_FILE
from shared.adapters.tensors import WEIGHTS_FILE
from shared.errors import ConfigError, NotFound, PeerUnavailable, SymphonyError, reason
from shared.runtime.config import load_config

PREFIX = "hub:"
FOLDER = "hub-adapters"
_NAME = re.compile(rf"{PREFIX}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HubAdapter:
    """Attributes:
    text: as it was asked for.
    repo: owner and name.
    revision: a branch, a tag or a commit.
    """

    text: str
    repo: str
    revision: str = "main"


def parse_hub(text: str) -> HubAdapter:
    """What ``hub:OWNER/REPO[@REVISION]`` names.

    Raises:
        ConfigError: it is something else.

    >>> parse_hub("hub:acme/fox@v2").revision
    'v2'
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text}: give {PREFIX}OWNER/REPO or {PREFIX}OWNER/REPO@REVISION")
    return HubAdapter(text, match[1], match[2] or "main")


def adapter_folder(source: str, kept: Path, say: Say) -> Path:
    """The folder that an adapter is in: named itself, or fetched from the hub.

    Args:
        kept: folder of what is fetched, converted and made.
        say: called with progress.

    Raises:
        SymphonyError: it cannot be had from the hub.
    """
    if not source.startswith(PREFIX):
        return Path(source).expanduser()
    bytes_max = load_config(KvstoreConfig).adapter_bytes_max
    return fetch_adapter(parse_hub(source), kept, say, bytes_max)


def fetch_adapter(
    wanted: HubAdapter, kept: Path, say: Say, bytes_max: int, endpoint: str | None = None
) -> Path:
    """The folder below `kept` with an adapter's files; fetched unless that commit is there. While
    the hub cannot be reached it is what was fetched before.

    Args:
        bytes_max: of all files that are taken.
        endpoint: the hub's address; None: what ``HF_ENDPOINT`` says, or else the public one.

    Raises:
        AdapterInvalid: a file is missing that is needed, or they are too large.
        NotFound: the hub has no such repository or revision.
        PeerUnavailable: the hub cannot be reached.
        SymphonyError: it does not let us have it.
    """
    place = kept / FOLDER / wanted.repo.replace("/", "--")
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    latest = place / f"at-{quote(wanted.revision, safe='')}"
    try:
        with _errors_of(wanted):
            commit, sizes = _look(wanted, endpoint)
    except PeerUnavailable as error:
        if not latest.is_dir():
            raise
        say(f"{error.message}; taking what was fetched before")
        return latest.resolve()
    _check_size(sizes, bytes_max)
    folder = place / commit
    with made_once(folder) as building:
        if building is not None:
            say(f"fetching {wanted.text}: {sum(sizes.values()) / 1e6:.1f} MB, this once")
            with _errors_of(wanted), busy_bar(f"fetching {wanted.text}"):
                _download(wanted, commit, list(sizes), building, endpoint)
        _point(latest, commit)
    return folder


def _look(wanted: HubAdapter, endpoint: str | None) -> tuple[str, dict[str, int]]:
    """The commit that a revision stands for, and the bytes of each file that is taken of it.

    Raises:
        AdapterInvalid: one is missing that is needed.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import RemoteEntryNotFoundError

    commit, sizes = wanted.revision, dict[str, int]()
    for name in (*TAKEN, PICKLE_FILE):
        url = hf_hub_url(wanted.repo, name, revision=commit, endpoint=endpoint)
        try:
            found = get_hf_file_metadata(url, endpoint=endpoint)
        except RemoteEntryNotFoundError:
            continue
        if found.size is None or not _COMMIT.fullmatch(found.commit_hash or ""):
            raise PeerUnavailable(f"{wanted.text}: what answers is no hub")
        assert found.commit_hash is not None
        commit, sizes[name] = found.commit_hash, found.size
    has_pickle = sizes.pop(PICKLE_FILE, None) is not None
    check_names(sizes, has_pickle=has_pickle)
    return commit, sizes


def _check_size(sizes: dict[str, int], bytes_max: int) -> None:
    if (whole := sum(sizes.values())) > bytes_max:
        raise AdapterTooLarge(
            WEIGHTS_FILE, f"{whole} bytes of files, at most {bytes_max} are taken"
        )


def _download(
    wanted: HubAdapter, commit: str, names: list[str], folder: Path, endpoint: str | None
) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    for name in names:
        hf_hub_download(
            wanted.repo, name, revision=commit, local_dir=folder, endpoint=endpoint
        )  # fmt: skip
    shutil.rmtree(folder / ".cache")  # what the library notes of them


def _point(latest: Path, commit: str) -> None:
    """Let a revision's link lead to a commit, atomically."""
    new = latest.with_name(f"{latest.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(commit)
    new.rename(latest)


@contextmanager
def _errors_of(wanted: HubAdapter) -> Iterator[None]:
    """What the hub's library raises, in our words."""
    from huggingface_hub import errors

    text = wanted.text
    # The base of what its HTTP client raises, whichever client that is.
    connection_error = cast(type[Exception], errors.HfHubHTTPError.__bases__[0])
    try:
        yield
    except errors.HFValidationError:
        raise ConfigError(f"{text}: the hub knows no such names") from None
    except errors.GatedRepoError:
        raise SymphonyError(
            f"{text}: access to it is gated: ask on its page, and give your token in HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise NotFound(
            f"{text}: the hub has no such repository; if it is private, give a token in HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise NotFound(f"{text}: it has no revision {wanted.revision!r}") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        raise PeerUnavailable(f"{text}: the hub answers with status {status}") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, connection_error) as error:
        why = reason(error.__cause__ or error)
        raise PeerUnavailable(f"{text}: the hub cannot be reached: {why}") from None
    except OSError as error:  # of the disk
        raise SymphonyError(f"{text}: {error.strerror or error}") from None
