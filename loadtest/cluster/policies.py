"""Placement by name, with what is switched off for an ablation."""

from loadtest.cluster.options import ClusterOptions


def placement_of(options: ClusterOptions) -> str:
    """The policy's name among those of schedulers."""
    return options.policy
