"""What one lecture alone trains, feeds or searches with; what several use is in ``utils.training``.

- ``feeding``: who gets which sample, photographs to decode, a look into a loader's workers.
- ``same_training``: one training, the same for every framework; the scripts in ``scripts/frameworks`` run it.
- ``tuning``: a training to be tuned; ``searches``: Ray Tune's searchers on recorded learning curves.
"""
