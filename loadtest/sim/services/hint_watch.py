"""What trackers may act on: sessions and prompts that the tenant's own messages named before."""

from loadtest.sim.network import Message, Network, Peer
from loadtest.sim.services.scheduler import Tracker
from services.tracker.core import check_foreseen
from shared.blocks import BlockKey, unpack_keys
from shared.ids import SessionId, TenantId
from shared.wire.messages import (
    Advisory,
    AgentTurnLeft,
    ExpectSession,
    TurnArrived,
    TurnsForeseen,
    decode,
    prefix_session,
)
from shared.wire.subjects import ADVISORY_SUBMIT


class HintWatch:
    """Notes what is published about turns, and holds to it what trackers publish."""

    def __init__(self, network: Network) -> None:
        self._sessions: set[tuple[TenantId, SessionId]] = set()
        self._keys: set[tuple[TenantId, BlockKey]] = set()  # that agents' prompts began with
        self._submit = ADVISORY_SUBMIT.pattern.removeprefix("symphony")
        network.tap("submit", self._on_submit)
        network.tap("arrived", self._on_arrived)
        network.tap("left", self._on_left)
        network.tap("foreseen", self._on_foreseen)
        network.tap("expect", self._on_expect)

    def _on_submit(self, _: Peer, message: Message) -> None:
        if message.subject.endswith(self._submit):
            advisory = decode(Advisory, message.data)
            self._sessions.add((advisory.tenant, advisory.session_id))

    def _on_arrived(self, _: Peer, message: Message) -> None:
        arrived = decode(TurnArrived, message.data)
        self._sessions.add((arrived.tenant, arrived.session_id))

    def _on_left(self, _: Peer, message: Message) -> None:
        left = decode(AgentTurnLeft, message.data)
        self._keys.update((left.tenant, key) for key in unpack_keys(left.keys))

    def _on_foreseen(self, process: Peer, message: Message) -> None:
        _check_leads(process)
        foreseen = decode(TurnsForeseen, message.data)
        check_foreseen(foreseen)
        for each in foreseen.turns:
            self._check_session(each.advisory.tenant, each.advisory.session_id)

    def _on_expect(self, process: Peer, message: Message) -> None:
        _check_leads(process)
        expect = decode(ExpectSession, message.data)
        if expect.prefix is None:
            self._check_session(expect.tenant, expect.session_id)
            return
        assert expect.session_id == prefix_session(expect.prefix.agent)
        keys = unpack_keys(expect.prefix.keys)
        are_known = self._keys.issuperset((expect.tenant, key) for key in keys)
        assert keys and are_known, f"no agent of {expect.tenant} begins so"

    def _check_session(self, tenant: TenantId, session_id: SessionId) -> None:
        assert (tenant, session_id) in self._sessions, f"{tenant} has no session {session_id}"


def _check_leads(process: Peer) -> None:
    assert isinstance(process, Tracker) and process.fence, "a spare acts"
