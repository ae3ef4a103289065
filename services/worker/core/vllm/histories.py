"""Which tokens sessions have so far: vLLM finds KV by tokens, and hints name sessions."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.blocks import BlockKey, chain_keys
from shared.owners import OwnerKey

TOKENS_MAX = 1 << 24  # 64 MiB


@dataclass(frozen=True, slots=True)
class SessionTokens:
    """A session's prompt and reply, as its last turn left them.

    Attributes:
        salt: what vLLM keeps its prefixes apart by.
        root: hex; see `RequestKv`.
    """

    tokens: "array[int]"
    salt: str
    root: str


@dataclass(slots=True)
class Histories:
    """The sessions whose turns ran here last."""

    tokens_max: int = TOKENS_MAX
    _sessions: "OrderedDict[OwnerKey, SessionTokens]" = field(default_factory=OrderedDict)
    _num_tokens: int = 0

    def set(self, owner: OwnerKey, session: SessionTokens) -> None:
        """A turn of this session is over."""
        self.drop(owner)
        self._sessions[owner] = session
        self._num_tokens += len(session.tokens)
        while self._num_tokens > self.tokens_max:
            self.drop(next(iter(self._sessions)))

    def drop(self, owner: OwnerKey) -> None:
        """The session was deleted."""
        if (session := self._sessions.pop(owner, None)) is not None:
            self._num_tokens -= len(session.tokens)

    def get(self, owner: OwnerKey) -> SessionTokens | None:
        """A session's tokens, if it was here lately."""
        return self._sessions.get(owner)


def num_same(session: SessionTokens, keys: Sequence[BlockKey]) -> int:
    """How many leading blocks of these keys hold the session's tokens, at least one of which is
    behind them: its last turn may have run elsewhere, on other tokens or another adapter.
    """
    own = chain_keys(BlockKey(bytes.fromhex(session.root)), session.tokens[:-1])
    num = min(len(own), len(keys))
    return next((at for at in range(num) if own[at] != keys[at]), num)
