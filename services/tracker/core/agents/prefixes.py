"""The common prefix of an agent's prompts: its system prompt and its tools. It can be fetched in
advance even for a session that does not exist yet (SYMPHONY, section 3.3, has sessions only).
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from shared.blocks import KEY_BYTES, PREFIX_BLOCKS_MAX
from shared.ids import ModelId, SessionId, TenantId
from shared.wire.messages import AdapterRef

AGENTS_MAX = 1024  # of all tenants; at most some 16 KiB each per model
MODELS_MAX = 4  # of one agent
SESSIONS_MAX = 8  # that are compared, the most recent ones, so that an old prompt is forgotten
SESSIONS_MIN = 2

AgentKey = tuple[TenantId, str]
_ModelKey = tuple[ModelId, str]  # and the hash of the adapter


@dataclass(frozen=True, slots=True)
class Prefix:
    """Attributes:
    keys: of the leading blocks, concatenated.
    """

    model_id: ModelId
    adapter: AdapterRef | None
    keys: bytes


class _Prompts:
    """The first prompts of an agent's last sessions on one model, and their common prefix."""

    def __init__(self, model_id: ModelId, adapter: AdapterRef | None) -> None:
        self._model_id, self._adapter = model_id, adapter
        self._of_session: OrderedDict[SessionId, bytes] = OrderedDict()
        self.prefix: Prefix | None = None

    def add(self, session_id: SessionId, keys: bytes) -> None:
        """Add a session's first prompt; its later ones begin with it."""
        if session_id in self._of_session:
            return
        self._of_session[session_id] = keys
        if len(self._of_session) > SESSIONS_MAX:
            self._of_session.popitem(last=False)
        num_wanted = max(SESSIONS_MIN, len(self._of_session) // 2 + 1)
        shared = shared_beginning(self._of_session.values(), num_wanted)
        self.prefix = Prefix(self._model_id, self._adapter, shared) if shared else None


class AgentPrefixes:
    """Prefixes of every tenant's agents by model. Above the limit the least recently active agent
    of the tenant with the most is forgotten. Tenants are fully separated.
    """

    def __init__(self) -> None:
        self._agents: OrderedDict[AgentKey, OrderedDict[_ModelKey, _Prompts]] = OrderedDict()
        self._num_of: Counter[TenantId] = Counter()

    def __len__(self) -> int:
        return len(self._agents)

    def learn(
        self,
        agent: AgentKey,
        session_id: SessionId,
        model_id: ModelId,
        adapter: AdapterRef | None,
        keys: bytes,
    ) -> None:
        """Learn the prompt of an agent's turn.

        Args:
            keys: whole keys of its leading blocks; those above `PREFIX_BLOCKS_MAX` are ignored.
        """
        models = self._agents.get(agent)
        if models is None:
            self._make_room()
            models = self._agents[agent] = OrderedDict()
            self._num_of[agent[0]] += 1
        self._agents.move_to_end(agent)
        key = model_id, adapter.adapter_hash if adapter is not None else ""
        prompts = models.setdefault(key, _Prompts(model_id, adapter))
        models.move_to_end(key)
        if len(models) > MODELS_MAX:
            models.popitem(last=False)
        prompts.add(session_id, keys[: PREFIX_BLOCKS_MAX * KEY_BYTES])

    def of(self, agent: AgentKey) -> Prefix | None:
        """The prefix on the model that it ran on last; None: none is known."""
        models = self._agents.get(agent)
        return models[next(reversed(models))].prefix if models else None

    def _make_room(self) -> None:
        if len(self._agents) < AGENTS_MAX:
            return
        tenant, num = self._num_of.most_common(1)[0]
        del self._agents[next(key for key in self._agents if key[0] == tenant)]
        self._num_of[tenant] -= 1
        if num == 1:
            del self._num_of[tenant]


def shared_beginning(prompts: Iterable[bytes], num_wanted: int) -> bytes:
    """The longest run of keys that is a prefix of at least so many prompts; of several of equal
    length, the one of most prompts.

    >>> a, b, c = b"a" * 16, b"b" * 16, b"c" * 16
    >>> shared_beginning([a + b + c, a + b, a + c], 2) == a + b
    True
    """
    prompts = list(prompts)
    longest, num_shared, num_max = b"", 0, max(map(len, prompts), default=0) // KEY_BYTES
    while num_shared < num_max:  # prompts that share a prefix share its half, too
        num = (num_shared + num_max + 1) // 2
        size = num * KEY_BYTES
        beginnings = Counter(keys[:size] for keys in prompts if len(keys) >= size)
        beginning, num_alike = beginnings.most_common(1)[0]
        if num_alike >= num_wanted:
            longest, num_shared = beginning, num
        else:
            num_max = num - 1
    return longest
