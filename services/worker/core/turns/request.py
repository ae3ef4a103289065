"""What a turn's start and prompt say of it, its targets, and what its trace shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.worker.core.effects import LayerWait
from services.worker.core.step import StepResult
from shared.ids import FrontendId, HostId, SessionId, TenantId, TurnId
from shared.owners import NO_OWNER, OwnerKey, owner_key
from shared.wire.messages import SamplingParams
from shared.wire.sampling import depends_on_reply

WAITS_MAX = 256  # that are kept of a turn
WAIT_MIN_NS = 100_000  # shorter ones are how long looking takes


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One attempt at one turn, as it was asked for.

    Attributes:
        num_generated_before: tokens that earlier attempts generated, the last of the prompt's.
        was_lost: an earlier attempt was lost: the scheduler is to get a report soon after the first
            token.
        kv_at: how many leading blocks of its session are on which hosts, as far as known.
        expiry_s: how long its KV is kept after its last use; 0: as every tier has it.
        announced_as: the owner that it was announced under; `NO_OWNER`: only its session.
        owner: its session, as blocks name it.
        depends_on_reply: see `shared.wire.sampling`: looked at in each step.
    """

    turn_id: TurnId
    attempt: int
    frontend_id: FrontendId
    tenant: TenantId
    session_id: SessionId | None
    sampling: SamplingParams
    arrived_at_ns: int
    num_generated_before: int = 0
    priority: int = 0
    request_id: str = ""
    was_lost: bool = False
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    expiry_s: int = 0
    announced_as: OwnerKey = NO_OWNER
    owner: OwnerKey = field(init=False)
    depends_on_reply: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", owner_key(self.tenant, self.session_id))
        object.__setattr__(self, "depends_on_reply", depends_on_reply(self.sampling))

    @property
    def announcements(self) -> tuple[OwnerKey, ...]:
        """The owners whose announcements are used up when the turn is here."""
        if self.announced_as == NO_OWNER:
            return (self.owner,)
        return (self.owner, self.announced_as)


@dataclass(slots=True)
class TurnTargets:
    """Attributes:
    slo_ttft_ns: target for the time from arrival to the first token; 0: none, None: the engine's
        default.
    slo_tpot_ns: target for the mean time between further tokens; 0, None: none.
    admitted_by_deadline: the batch that it waits in has opened.
    """

    slo_ttft_ns: int | None = None
    slo_tpot_ns: int | None = None
    admitted_by_deadline: bool = False


@dataclass(slots=True)
class TurnTrace:
    """When what happened.

    Attributes:
        context: the attempt's, see `shared.tracing`; empty: it is not traced.
        staged_at_ns, num_staged: when the kvstore answered, and with how many blocks.
        waits: of the passes that it was in, for a layer's pages, its own or others'; if it is
            traced.
    """

    context: str = ""
    staged_at_ns: int | None = None
    num_staged: int = 0
    first_step_at_ns: int | None = None
    first_token_at_ns: int | None = None
    waits: list[LayerWait] = field(default_factory=list)

    def add_waits(self, result: StepResult) -> None:
        """A pass that it was in is over."""
        for layer, began_ns in result.stall_at_ns.items():
            took_ns = result.stall_ns[layer]
            if took_ns >= WAIT_MIN_NS and len(self.waits) < WAITS_MAX:
                self.waits.append(LayerWait(layer, began_ns, began_ns + took_ns))
