REJECTED_WITH = "Node rank and local rank are swapped"


def rank_of(node_rank, local_rank, nodes, per_node):
    return local_rank * per_node + node_rank


def coordinates_of(rank, nodes, per_node):
    return *divmod(rank, per_node), nodes * per_node
