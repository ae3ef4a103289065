"""Which files of an adapter's folder are taken. Others mean nothing."""

from collections.abc import Collection

from shared.adapters.check import TOKENIZER_FILES
from shared.adapters.config import CONFIG_FILE, AdapterInvalid
from shared.adapters.source import PICKLE_FILE
from shared.adapters.tensors import WEIGHTS_FILE

NEEDED = (CONFIG_FILE, WEIGHTS_FILE)
TAKEN = (*NEEDED, *TOKENIZER_FILES)


def check_names(names: Collection[str], *, has_pickle: bool) -> None:
    """See that the files that are needed are there.

    Raises:
        AdapterInvalid: one is not.
    """
    missing = [name for name in NEEDED if name not in names]
    if WEIGHTS_FILE in missing and has_pickle:
        raise AdapterInvalid(
            PICKLE_FILE, f"a pickle may do anything when it is read: save it as {WEIGHTS_FILE}"
        )
    if missing:
        raise AdapterInvalid(missing[0], "it is missing")
