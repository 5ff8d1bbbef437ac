"""What one lecture alone feeds, trains or searches with; what several use is in ``utils.training``.

- ``feeding``: who gets which sample, photographs to decode, a look into a loader's workers.
- ``tuning``: a training to be tuned; ``searches``: Ray Tune's searchers on recorded learning curves.
"""
