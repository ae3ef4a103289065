"""The control plane of a simulated cluster: production schedulers and tracker, without spares."""

from collections import Counter

from loadtest.cluster.by_reference import ReferenceBus
from loadtest.cluster.migration import Migration
from loadtest.sim.client import SimClient, Store
from loadtest.sim.process import Process
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.service import Service
from services.scheduler.config import SchedulerConfig
from services.scheduler.service import main as scheduler_main
from services.tracker.config import TrackerConfig
from services.tracker.service import ADVISORIES
from services.tracker.service import main as tracker_main
from shared.bus import Bus
from shared.wire.messages import TurnsSubmit, WorkerReport
from shared.wire.shards import by_shard
from shared.wire.subjects import TURN_SUBMIT, TURNS_ENDED, WORKER_REPORT


class ControlService(Service):
    """Base of both: a service that leads alone."""

    deployment: SimDeployment

    def make_bus(self) -> Bus:
        return ReferenceBus(SimClient(self.deployment.wires, self, self.loop), self.store)


class ClusterScheduler(ControlService):
    """Args:
    policy: of placement, as its settings have it.
    shard: which part of the turns it places.
    """

    kind = "scheduler"
    main = staticmethod(scheduler_main)

    def __init__(self, deployment: SimDeployment, store: Store, policy: str, shard: int) -> None:
        super().__init__(deployment, f"scheduler-{shard}", store)
        self._policy = policy
        self._shard = shard

    def config(self) -> SchedulerConfig:
        num_shards = self.deployment.num_shards
        return SchedulerConfig(
            instance=self.name,
            scheduler_policy=self._policy,
            scheduler_role="shard" if num_shards > 1 else "all",
            scheduler_shard=self._shard,
            scheduler_shards=num_shards,
            scheduler_lease="off",
        )


class ClusterTracker(ControlService):
    """The tracker."""

    kind = "tracker"
    main = staticmethod(tracker_main)

    def __init__(self, deployment: SimDeployment, store: Store) -> None:
        super().__init__(deployment, "tracker", store)

    def config(self) -> TrackerConfig:
        return TrackerConfig(
            instance=self.name, scheduler_shards=self.deployment.num_shards, scheduler_lease="off"
        )


class Migrator(Process):
    """Asks schedulers to place running turns again, as `migration` says."""

    deployment: SimDeployment

    def __init__(self, deployment: SimDeployment, migration: Migration) -> None:
        super().__init__(deployment, "migrator")
        self._migration = migration

    def on_start(self) -> None:
        wires, migration = self.deployment.wires, self._migration
        for shard in range(self.deployment.num_shards):
            wires.listen(self, TURN_SUBMIT, lambda sent, _: migration.on_submit(sent), str(shard))
        wires.listen(self, TURNS_ENDED, lambda ended, _: migration.on_ended(ended))
        wires.listen(self, WORKER_REPORT, lambda report, _: self._on_report(report))

    def _on_report(self, report: WorkerReport) -> None:
        if (moved := self._migration.on_report(report)) is None:
            return
        for shard, turns in by_shard(moved.turns, self.deployment.num_shards).items():
            self.deployment.wires.send(self, TURN_SUBMIT, TurnsSubmit(turns=turns), str(shard))


def advisory_outcomes() -> Counter[str]:
    """Advisories by outcome, of all trackers in this interpreter."""
    (metric,) = ADVISORIES.collect()
    return Counter(
        {
            each.labels["outcome"]: int(each.value)
            for each in metric.samples
            if each.name.endswith("_total")
        }
    )
