"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

traveling.py  moe: tokens travel to the ranks of their experts and back, with their gradients
routing.py    router: a bias that balances the load, and a bound on the nodes of a token
averaging.py  finish_gradients: what is averaged over whom, and the norm of the whole model
placing.py    place: which expert on which node, so that no link carries much more than the others
"""

from checks.labs.expert_parallelism.averaging import finish_gradients
from checks.labs.expert_parallelism.placing import place
from checks.labs.expert_parallelism.routing import router
from checks.labs.expert_parallelism.traveling import moe

EXERCISES = [moe, router, finish_gradients, place]
