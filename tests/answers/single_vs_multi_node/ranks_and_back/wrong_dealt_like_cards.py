REJECTED_WITH = "you deal the ranks out to the nodes like cards"


def rank_of(node_rank, local_rank, nodes, per_node):
    return local_rank * nodes + node_rank


def coordinates_of(rank, nodes, per_node):
    return rank % nodes, rank // nodes, nodes * per_node
