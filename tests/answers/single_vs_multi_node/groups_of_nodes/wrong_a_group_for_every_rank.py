import torch.distributed as dist

REJECTED_WITH = "one group per node and one per local rank, and no more"


def make_groups(nodes, per_node):
    size = nodes * per_node
    by_node = [dist.new_group([q for q in range(size) if q // per_node == r // per_node]) for r in range(size)]
    by_local = [dist.new_group([q for q in range(size) if q % per_node == r % per_node]) for r in range(size)]
    return by_node[dist.get_rank()], by_local[dist.get_rank()]
