REJECTED_WITH = "you deal the ranks out like cards"


def rank_of(node_rank, local_rank, nodes, per_node):
    return node_rank * per_node + local_rank


def coordinates_of(rank, nodes, per_node):
    return rank % nodes, rank // nodes, nodes * per_node
