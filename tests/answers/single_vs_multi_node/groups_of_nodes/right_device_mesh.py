def make_groups(nodes, per_node):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (nodes, per_node), mesh_dim_names=("cross", "node"))
    return mesh.get_group("node"), mesh.get_group("cross")
