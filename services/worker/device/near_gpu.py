"""A worker runs on the CPUs of its GPU's NUMA node: what it stages and pins is in memory there."""

import ctypes
import logging

from shared.runtime.numa import bind_process, cpus_near

log = logging.getLogger(__name__)

DRIVER = "libcuda.so.1"
BUS_ID_BYTES = 32


def bind_near_gpu() -> None:
    """Bind this process near the first GPU that it sees; before it takes memory for it. A process
    that was bound to one node by others stays there.
    """
    if (bus_id := _bus_id()) and (cpus := bind_process(cpus_near(bus_id))):
        log.info("bound to the GPU's NUMA node", extra={"gpu": bus_id, "cpus": len(cpus)})


def _bus_id() -> str:
    """Of the GPU, or of that which a MIG instance is part of; empty: the driver does not say."""
    text = ctypes.create_string_buffer(BUS_ID_BYTES)
    try:
        driver = ctypes.CDLL(DRIVER)
        status = driver.cuInit(0) or driver.cuDeviceGetPCIBusId(text, BUS_ID_BYTES, 0)
    except (OSError, AttributeError):
        return ""
    return "" if status else text.value.decode(errors="replace")
