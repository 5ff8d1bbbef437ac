from itertools import groupby


def repair(environments):
    address, port = environments[0]["NODE_ADDR"], environments[0]["MASTER_PORT"]
    repaired = []
    for node, processes in groupby(environments, key=lambda one: one["NODE_ADDR"]):
        for local_rank, _ in enumerate(processes):
            repaired.append(
                dict(
                    NODE_ADDR=node,
                    RANK=f"{len(repaired)}",
                    LOCAL_RANK=f"{local_rank}",
                    WORLD_SIZE=f"{len(environments)}",
                    MASTER_ADDR=address,
                    MASTER_PORT=port,
                )
            )
    return repaired
