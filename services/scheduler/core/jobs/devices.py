"""Which workers serve one-shot models, as numbered devices."""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from services.scheduler.core.jobs.records import MAX_SILENT_REPORTS, Device, ModelKey
from shared.ids import ModelId, WorkerId
from shared.wire.messages import SLO_MS_MAX, OneshotCard, OneshotHold, WorkerReport

FORGET_AFTER_NS = 600_000_000_000


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """What a report changed. `restarted`: the old process is gone, and its batches with it."""

    device: Device
    restarted: bool
    keys_changed: bool


class Devices:
    """Every worker that serves or served one-shot models.

    Each gets the lowest free number at its first report; policies prefer low numbers.
    """

    def __init__(self) -> None:
        self._by_worker: dict[WorkerId, Device] = {}
        self._by_number: dict[int, Device] = {}
        self._num_serving: Counter[Hashable] = Counter()
        self._num_loadable: Counter[Hashable] = Counter()

    def __iter__(self) -> Iterator[Device]:
        return iter(self._by_number.values())

    def __getitem__(self, worker_id: WorkerId) -> Device:
        return self._by_worker[worker_id]

    def get(self, worker_id: WorkerId) -> Device | None:
        return self._by_worker.get(worker_id)

    def numbered(self, number: int) -> Device:
        return self._by_number[number]

    @property
    def num_ready(self) -> int:
        return sum(device.is_serving for device in self)

    @property
    def is_any_known(self) -> bool:
        """Whether a worker serves one-shot models, or did by its last report."""
        return any(device.cards for device in self)

    def num_serving(self, key: ModelKey) -> int:
        """How many workers can be given batches of this model."""
        return self._num_serving[key]

    def can_load(self, key: ModelKey) -> bool:
        """Whether a worker that does not serve this model can load it on order."""
        return self._num_loadable[key] > 0

    @property
    def by_number(self) -> dict[int, Device]:
        return self._by_number

    def silent(self, now_ns: int) -> Iterator[Device]:
        """Devices whose reports are overdue."""
        for device in self:
            if (
                device.is_serving
                and now_ns - device.reported_at_ns > MAX_SILENT_REPORTS * device.interval_ns
            ):
                yield device

    def restart_silence(self, now_ns: int) -> None:
        """This process received nothing for a while: count the workers' silence from now on."""
        for device in self:
            if device.is_serving:
                device.reported_at_ns = now_ns

    def close(self, device: Device) -> None:
        """Give it no batches until its next report."""
        device.ordered = None
        self._set_keys(device, frozenset(), frozenset())

    def order(self, worker_id: WorkerId, order: OneshotHold) -> bool:
        """It is to hold these models and no others; True if it loses some of its keys."""
        device = self._by_worker[worker_id]
        device.ordered = models = frozenset(order.models)
        leaving = frozenset(key for key in device.keys if _model_of(key) not in models)
        self._set_keys(device, device.keys - leaving, device.loadable | leaving)
        return bool(leaving)

    def forget(self, now_ns: int) -> None:
        """Remove workers that have been dead for long. One that returns is a new one."""
        gone = [
            device
            for device in self
            if not (device.is_serving or device.batches or device.foreign or device.is_added)
            and now_ns - device.reported_at_ns > FORGET_AFTER_NS
        ]
        for device in gone:
            del self._by_worker[device.worker_id], self._by_number[device.number]

    def take_report(self, report: WorkerReport, now_ns: int) -> DeviceChange | None:
        """Apply a report; None if it is outdated or of a worker without one-shot models."""
        device = self._by_worker.get(report.worker_id)
        restarted = False
        if device is None:
            if not report.oneshot:
                return None
            number = next(n for n in count() if n not in self._by_number)
            device = Device(number, report.worker_id, report.incarnation)
            self._by_worker[report.worker_id] = device
            self._by_number[number] = device
        elif report.incarnation != device.incarnation:
            if report.incarnation in device.retired:
                return None
            device.retired.append(device.incarnation)
            device.incarnation = report.incarnation
            restarted = True
        elif report.seq <= device.seq:
            return None
        device.seq = report.seq
        device.reported_at_ns = now_ns
        device.interval_ns = report.interval_ns
        device.cards = [sound for card in report.oneshot if (sound := _sound(card)) is not None]
        if report.state != "ready" or not report.oneshot_bytes:
            device.ordered = None
        ready = device.cards if report.state == "ready" else []
        lacking = {lack.model_id for lack in report.oneshot_lacks}
        served = {card.model_id for card in ready if card.is_loaded}
        if device.ordered is not None:
            served &= device.ordered
        able = {card.model_id for card in ready if report.oneshot_bytes} - served - lacking
        keys = _keys_of(ready, served)
        keys_changed = keys != device.keys
        self._set_keys(device, keys, _keys_of(ready, able))
        return DeviceChange(device, restarted, keys_changed)

    def _set_keys(
        self, device: Device, keys: frozenset[Hashable], loadable: frozenset[Hashable]
    ) -> None:
        for counts, before, after in (
            (self._num_serving, device.keys, keys),
            (self._num_loadable, device.loadable, loadable),
        ):
            for key in before - after:
                counts[key] -= 1
            for key in after - before:
                counts[key] += 1
        device.keys, device.loadable = keys, loadable


def _keys_of(cards: list[OneshotCard], models: set[ModelId]) -> frozenset[Hashable]:
    return frozenset(
        ModelKey(card.model_id, card.fingerprint, variant.variant)
        for card in cards
        if card.model_id in models
        for variant in card.variants
    )


def _model_of(key: Hashable) -> ModelId:
    assert isinstance(key, ModelKey)
    return key.model_id


def _sound(card: OneshotCard) -> OneshotCard | None:
    """The plausible part of a card: positive times and a finite target; None if there is none."""
    if not 0 < card.slo_ms <= SLO_MS_MAX:  # false for NaN
        return None
    variants = [v for v in card.variants if v.batch_ns and min(v.batch_ns) >= 1]
    return replace(card, variants=variants) if variants else None
