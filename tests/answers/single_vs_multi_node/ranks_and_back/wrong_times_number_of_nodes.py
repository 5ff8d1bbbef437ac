REJECTED_WITH = "Multiply by the processes per node, not by the number of nodes"


def rank_of(node_rank, local_rank, nodes, per_node):
    return node_rank * nodes + local_rank


def coordinates_of(rank, nodes, per_node):
    return rank // nodes, rank % nodes, nodes * per_node
