"""Which workers serve one-shot models, as numbered devices."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from services.scheduler.core.jobs.records import MAX_SILENT_REPORTS, Device, ModelKey
from shared.ids import WorkerId
from shared.wire.messages import SLO_MS_MAX, OneshotCard, WorkerReport

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
        self._num_serving: dict[Hashable, int] = {}

    def __iter__(self) -> Iterator[Device]:
        return iter(self._by_number.values())

    def get(self, worker_id: WorkerId) -> Device | None:
        return self._by_worker.get(worker_id)

    def numbered(self, number: int) -> Device:
        return self._by_number[number]

    @property
    def num_ready(self) -> int:
        return sum(bool(device.keys) for device in self)

    @property
    def is_any_known(self) -> bool:
        """Whether a worker serves one-shot models, or did by its last report."""
        return any(device.cards for device in self)

    def num_serving(self, key: ModelKey) -> int:
        """How many workers can be given batches of this model."""
        return self._num_serving.get(key, 0)

    def silent(self, now_ns: int) -> Iterator[Device]:
        """Devices whose reports are overdue."""
        for device in self:
            if (
                device.keys
                and now_ns - device.reported_at_ns > MAX_SILENT_REPORTS * device.interval_ns
            ):
                yield device

    def restart_silence(self, now_ns: int) -> None:
        """This process received nothing for a while: count the workers' silence from now on."""
        for device in self:
            if device.keys:
                device.reported_at_ns = now_ns

    def close(self, device: Device) -> None:
        """Give it no batches until its next report."""
        self._set_keys(device, frozenset())

    def forget(self, now_ns: int) -> None:
        """Remove workers that have been dead for long. One that returns is a new one."""
        gone = [
            device
            for device in self
            if not (device.keys or device.batches or device.foreign or device.is_added)
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
        keys = frozenset(
            ModelKey(card.model_id, card.fingerprint, variant.variant)
            for card in device.cards
            for variant in card.variants
            if report.state == "ready"
        )
        keys_changed = keys != device.keys
        self._set_keys(device, keys)
        return DeviceChange(device, restarted, keys_changed)

    def _set_keys(self, device: Device, keys: frozenset[Hashable]) -> None:
        for key in device.keys - keys:
            self._num_serving[key] -= 1
        for key in keys - device.keys:
            self._num_serving[key] = self._num_serving.get(key, 0) + 1
        device.keys = keys


def _sound(card: OneshotCard) -> OneshotCard | None:
    """The plausible part of a card: positive times and a finite target; None if there is none."""
    if not 0 < card.slo_ms <= SLO_MS_MAX:  # false for NaN
        return None
    variants = [v for v in card.variants if v.batch_ns and min(v.batch_ns) >= 1]
    return replace(card, variants=variants) if variants else None
