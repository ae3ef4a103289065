"""What all prompts of an agent begin with: its system prompt, its tools. A session that does not
exist yet has this much of its prompt all the same (SYMPHONY, section 3.3, knows sessions only).
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from shared.blocks import KEY_BYTES, PREFIX_BLOCKS_MAX
from shared.ids import ModelId, SessionId, TenantId
from shared.messages import AdapterRef

AGENTS_MAX = 1024  # of all tenants; some 16 KiB each at most, for every model
MODELS_MAX = 4  # of one agent
SESSIONS_MAX = 8  # that are compared, the last ones; enough to forget a prompt that was changed
SESSIONS_MIN = 2

AgentKey = tuple[TenantId, str]
_ModelKey = tuple[ModelId, str]  # and the hash of the adapter


@dataclass(frozen=True, slots=True)
class Prefix:
    """Attributes:
    keys: of the leading blocks, one after the other.
    """

    model_id: ModelId
    adapter: AdapterRef | None
    keys: bytes


class _Prompts:
    """The first prompts of an agent's last sessions on one model, and what most of them share."""

    def __init__(self, model_id: ModelId, adapter: AdapterRef | None) -> None:
        self._model_id, self._adapter = model_id, adapter
        self._of_session: OrderedDict[SessionId, bytes] = OrderedDict()
        self.prefix: Prefix | None = None

    def add(self, session_id: SessionId, keys: bytes) -> None:
        """A session's further prompts say nothing new: all of them begin as its first did."""
        if session_id in self._of_session:
            return
        self._of_session[session_id] = keys
        if len(self._of_session) > SESSIONS_MAX:
            self._of_session.popitem(last=False)
        num_wanted = max(SESSIONS_MIN, len(self._of_session) // 2 + 1)
        shared = shared_beginning(self._of_session.values(), num_wanted)
        self.prefix = Prefix(self._model_id, self._adapter, shared) if shared else None


class AgentPrefixes:
    """Every tenant's agents, each with its models. Of too many agents the one not heard of for
    longest is forgotten, of the tenant that has most. Nothing of one tenant's reaches another's."""

    def __init__(self) -> None:
        self._agents: OrderedDict[AgentKey, OrderedDict[_ModelKey, _Prompts]] = OrderedDict()
        self._num_of: Counter[TenantId] = Counter()

    def __len__(self) -> int:
        return len(self._agents)

    def learn(
        self,
        who: AgentKey,
        session_id: SessionId,
        model_id: ModelId,
        adapter: AdapterRef | None,
        keys: bytes,
    ) -> None:
        """An agent's turn left KV of this beginning of its prompt: whole keys, of which as many
        count as anybody tells who keeps to the rules."""
        models = self._agents.get(who)
        if models is None:
            self._make_room()
            models = self._agents[who] = OrderedDict()
            self._num_of[who[0]] += 1
        self._agents.move_to_end(who)
        key = model_id, adapter.adapter_hash if adapter is not None else ""
        prompts = models.setdefault(key, _Prompts(model_id, adapter))
        models.move_to_end(key)
        if len(models) > MODELS_MAX:
            models.popitem(last=False)
        prompts.add(session_id, keys[: PREFIX_BLOCKS_MAX * KEY_BYTES])

    def of(self, who: AgentKey) -> Prefix | None:
        """On the model that it ran on last; None: nothing is known that its sessions share."""
        models = self._agents.get(who)
        return models[next(reversed(models))].prefix if models else None

    def _make_room(self) -> None:
        if len(self._agents) < AGENTS_MAX:
            return
        tenant, num = self._num_of.most_common(1)[0]
        del self._agents[next(who for who in self._agents if who[0] == tenant)]
        self._num_of[tenant] -= 1
        if num == 1:
            del self._num_of[tenant]


def shared_beginning(prompts: Iterable[bytes], num_wanted: int) -> bytes:
    """The longest run of keys with which at least so many prompts begin; of several that are as
    long, the one that most begin with.

    >>> a, b, c = b"a" * 16, b"b" * 16, b"c" * 16
    >>> shared_beginning([a + b + c, a + b, a + c], 2) == a + b
    True
    """
    prompts = list(prompts)
    longest, num_shared, num_max = b"", 0, max(map(len, prompts), default=0) // KEY_BYTES
    while num_shared < num_max:  # whoever shares a beginning shares its half, too
        num = (num_shared + num_max + 1) // 2
        size = num * KEY_BYTES
        beginnings = Counter(keys[:size] for keys in prompts if len(keys) >= size)
        beginning, num_alike = beginnings.most_common(1)[0]
        if num_alike >= num_wanted:
            longest, num_shared = beginning, num
        else:
            num_max = num - 1
    return longest
