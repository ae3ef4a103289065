"""Papers' figures, drawn again (`symphony bench figures SET`).

A figure is what `base.Figure` says: it measures numbers, draws them, and puts the paper's beside
them. `deferred.py` lists those of deferred batching, from the simulator, and `symphony` those of
SYMPHONY, from the simulated cluster; `punica` and `caraserve` are measured on this machine.
"""
