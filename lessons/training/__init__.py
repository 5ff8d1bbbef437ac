"""What one lecture alone feeds, trains, times or searches with; what several use is in ``utils.training``.

- ``feeding``: who gets which sample, photographs to decode, a look into a loader's workers.
- ``timing``: the best of several rounds, of threads or of ranks.
- ``layouts``: a step of a large Llama in any layout, simulated.
- ``tuning``: a training to be tuned; ``searches``: Ray Tune's searchers on recorded learning curves.
"""
