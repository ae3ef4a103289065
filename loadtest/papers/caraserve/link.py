"""The link that loads go over: as slow beside a model of 125 M as a bus is beside a large one."""

LINK_MB_S = 100
SIMULATED_LINK = f"link of {LINK_MB_S} MB/s simulated"
