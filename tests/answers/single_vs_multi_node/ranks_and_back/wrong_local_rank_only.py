REJECTED_WITH = "nodes before this one have processes too"


def rank_of(node_rank, local_rank, nodes, per_node):
    return local_rank


def coordinates_of(rank, nodes, per_node):
    return 0, rank, nodes * per_node
