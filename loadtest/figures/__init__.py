"""The paper's figures, drawn again from the simulator (`symphony bench figures deferred`).

A figure is what `base.Figure` says: it measures numbers, draws them, and puts the paper's beside
them. `deferred.py` lists them.
"""
