"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

weights.py   linear_layers: one matrix by columns, the next by rows; parallel_attention: each rank has some heads
sequence.py  sequence_norm: each rank normalises its own tokens; whole_model: torch's own layers, by a plan
passes.py    what they share: how f and g go wrong, a layer in two steps of training
"""

from checks.labs.tensor_parallelism.sequence import sequence_norm, whole_model
from checks.labs.tensor_parallelism.weights import linear_layers, parallel_attention

EXERCISES = [linear_layers, parallel_attention, sequence_norm, whole_model]
