"""Makes grammars, and sees that they can be used before a turn is held to them."""

import asyncio
import pickle
from dataclasses import dataclass
from signal import SIGABRT, SIGSEGV

from services.frontend.compiling.child import TOO_LARGE
from services.frontend.core.limits.tenant_cache import TenantCache
from services.frontend.core.process_pool import PoolLimits, Why
from services.frontend.core.replies.forms import Form
from services.frontend.rendering import frames
from services.frontend.rendering.pool import ChildKind, Pool
from shared.errors import InvalidRequest, NoCapacity
from shared.ids import TenantId
from shared.runtime.clock import Clock

PROCESSES = 2
WORK_S = 5.0
RETRY_S = 5.0
KEPT_BYTES_MAX = 64 * 1024**2
LIMITS = PoolLimits(
    num_children=PROCESSES,
    children_of_tenant=PROCESSES - 1,  # another tenant's grammar never waits for its
    work_ns=int(WORK_S * 1e9),
    waiting_max=64,
    wait_ns=30_000_000_000,
)
OF_CLOSED, OF_OPEN, OF_FLAW = "=", "+", "-"  # what is kept begins with


@dataclass(frozen=True, slots=True)
class Made:
    """Attributes:
    grammar: as llguidance takes it.
    is_open: objects in it may have keys of any name, which it does not keep from repeating.
    """

    grammar: str
    is_open: bool


KINDS = {frames.TEXT: OF_CLOSED, frames.OPEN: OF_OPEN, frames.REFUSED: OF_FLAW}


class _Crashed(Exception):
    """A grammar ended its process, as it would end any other."""


def _error(why: Why, work_ns: int) -> Exception:
    match why:
        case "crashed":
            return _Crashed()
        case "too_long":  # because of a slow moment or of the grammar, which is unknown
            return NoCapacity(
                f"the reply's grammar was not compiled within {work_ns / 1e9:g} s", RETRY_S
            )
        case "full":
            return NoCapacity("too many grammars are being compiled")
        case "lost":
            return NoCapacity("the process that compiles grammars ended")


_CHILD = ChildKind(
    "services.frontend.compiling.child", "grammars", _error, frozenset({SIGABRT, SIGSEGV})
)


class GrammarMaker:
    """Has grammars compiled by processes with limits in memory and time, and remembers what came of
    it, which depends on the grammar alone. That one took too long is not remembered.
    """

    def __init__(self, clock: Clock, limits: PoolLimits = LIMITS) -> None:
        self._pool = Pool(clock, limits, _CHILD)  # no process before it is used
        self._known = TenantCache(KEPT_BYTES_MAX)
        self._making: dict[tuple[TenantId, bytes], asyncio.Task[str]] = {}

    async def make(self, tenant: TenantId, key: bytes, form: Form, name: str) -> Made:
        """A grammar that can be compiled, within limits, and within which something can be said.

        Args:
            key: of all that the form holds.
            name: of the field that it comes from.

        Raises:
            InvalidRequest: there is none, and why.
            NoCapacity: it was not compiled in time, or too many wait for that.
        """
        known = self._known.get(tenant, key)
        if known is None:
            known = await asyncio.shield(self._task(tenant, key, form))
        if known.startswith(OF_FLAW):
            param = name.partition(".")[0]
            raise InvalidRequest(f"{name}: {known[1:]}", param, code="invalid_grammar")
        return Made(known[1:], is_open=known.startswith(OF_OPEN))

    @property
    def pids(self) -> list[int]:
        """Of its processes."""
        return self._pool.pids

    async def close(self) -> None:
        """End its processes."""
        await self._pool.close()

    def _task(self, tenant: TenantId, key: bytes, form: Form) -> "asyncio.Task[str]":
        """One for all requests of a tenant for a grammar; it goes on if they are cancelled."""
        task = self._making.get((tenant, key))
        if task is None:
            task = asyncio.create_task(self._make(tenant, form))
            self._making[tenant, key] = task
            task.add_done_callback(lambda task: self._on_made(tenant, key, task))
        return task

    def _on_made(self, tenant: TenantId, key: bytes, task: "asyncio.Task[str]") -> None:
        del self._making[tenant, key]
        if not task.cancelled() and task.exception() is None:
            self._known.put(tenant, key, task.result())

    async def _make(self, tenant: TenantId, form: Form) -> str:
        data = pickle.dumps(form, pickle.HIGHEST_PROTOCOL)
        try:
            kind, made = await self._pool.run(frames.LENGTH.pack(len(data)) + data, tenant)
        except _Crashed:
            return OF_FLAW + TOO_LARGE
        return KINDS[kind] + made.decode()
