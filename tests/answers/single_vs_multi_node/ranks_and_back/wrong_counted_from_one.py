REJECTED_WITH = "Ranks are counted from 0, yours from 1"


def rank_of(node_rank, local_rank, nodes, per_node):
    return node_rank * per_node + local_rank + 1


def coordinates_of(rank, nodes, per_node):
    return (rank - 1) // per_node, (rank - 1) % per_node, nodes * per_node
