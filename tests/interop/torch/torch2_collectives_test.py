"""PyTorch 2's functional collectives, its coalescing manager, collectives with gradients, groups and hooks."""

import unittest

import torch
import torch.distributed as dist

from beside_gloo import BesideGloo
from training import losses_of, model


def functional(rank):
    import torch.distributed._functional_collectives as functional

    size = dist.get_world_size()
    group = dist.group.WORLD
    mine = torch.arange(8.0 * size) + rank
    made = [functional.all_reduce(mine, "sum", group), functional.all_gather_tensor(mine, 0, group),
            functional.reduce_scatter_tensor(mine, "sum", 0, group), functional.broadcast(mine, size - 1, group),
            functional.all_to_all_single(mine, None, None, group),
            *functional.all_reduce_coalesced([mine, mine[:3]], "sum", group),
            *functional.all_gather_into_tensor_coalesced([mine, mine[:2]], group),
            *functional.reduce_scatter_tensor_coalesced([mine, mine], "sum", [0, 0], group)]
    made = [each + 0 for each in made]  # which waits for it
    total = torch.arange(8.0 * size) * size + sum(range(size))
    assert torch.equal(made[0], total) and torch.equal(made[2], total.chunk(size)[rank])
    assert torch.equal(made[4], torch.cat([torch.arange(8.0) + 8 * rank + other for other in range(size)]))
    return made


def coalesced(rank):
    size = dist.get_world_size()
    parts = [torch.full((n,), float(rank)) for n in range(1, 4)]
    with dist._coalescing_manager(dist.group.WORLD, async_ops=True) as works:
        for part in parts:
            dist.all_reduce(part)
    works.wait()
    for part in parts:
        assert torch.equal(part, torch.full_like(part, float(sum(range(size)))))
    return parts


def with_gradients(rank):
    import torch.distributed.nn.functional as functional

    size = dist.get_world_size()
    results = []
    for call in [lambda tensor: functional.all_reduce(tensor),
                 lambda tensor: functional.broadcast(tensor, size - 1),
                 lambda tensor: torch.cat(functional.all_gather(tensor)),
                 lambda tensor: torch.cat(functional.all_to_all([torch.empty(2) for _ in range(size)], list(tensor.chunk(size)))),
                 lambda tensor: functional.reduce_scatter(torch.empty(2), list(tensor.chunk(size))),
                 lambda tensor: functional.all_to_all_single(torch.empty(2 * size), tensor)]:
        tensor = (torch.arange(2.0 * size) + rank).requires_grad_()
        made = call(tensor)
        (made * torch.arange(float(made.numel()))).sum().backward()
        results += [made.detach(), tensor.grad]
    return results


def groups(rank):
    """Groups that their members alone make, groups of groups, objects, and ranks counted in the group."""
    size = dist.get_world_size()
    results = []
    first = rank // 2 * 2
    pair = dist.new_group([first, first + 1], use_local_synchronization=True, group_desc="two")
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=pair)
    dist.broadcast(tensor, group=pair, group_src=1)
    things = [None, None]
    dist.all_gather_object(things, {"rank": rank}, group=pair)
    results += [tensor, things, pair.group_desc]
    backwards = dist.new_group(list(reversed(range(size))))
    got = [None]
    dist.scatter_object_list(got, [f"for {i}" for i in range(size)] if rank == size - 1 else None, group=backwards,
                             group_src=dist.get_group_rank(backwards, size - 1))
    mine, whole = dist.new_subgroups(size // 2)
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor, group=mine)
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(tensor.tolist(), gathered)
    if rank == 0:
        dist.send_object_list([gathered, "all"], 1)
    elif rank == 1:
        heard = [None, None]
        dist.recv_object_list(heard, 0)
        results.append(heard)
    return results, got, len(whole), tensor


def gradient_hooks(rank):
    """DistributedDataParallel's hooks, those in C++ and those in Python."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook

    def trained(register):
        net = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.01)
        register(net)
        losses = losses_of(net, torch.optim.SGD(net.parameters(), lr=0.1), rank)
        return losses, [parameter.detach() for parameter in net.parameters()]

    local = post_localSGD_hook.PostLocalSGDState(None, dist.new_subgroups(1)[0], start_localSGD_iter=4)
    return [trained(register) for register in [
        lambda net: net._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
        lambda net: net._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
        lambda net: net.register_comm_hook(None, default_hooks.allreduce_hook),
        lambda net: net.register_comm_hook(None, default_hooks.fp16_compress_hook),
        lambda net: net.register_comm_hook(None, default_hooks.bf16_compress_hook),
        lambda net: net.register_comm_hook(local, post_localSGD_hook.post_localSGD_hook)]]


class Collectives(BesideGloo):
    suite = "collectives, groups, hooks"

    def test_functional(self):
        self.beside(functional)

    def test_coalesced(self):
        self.beside(coalesced)

    def test_with_gradients(self):
        self.beside(with_gradients)

    def test_groups(self):
        self.beside(groups)

    def test_gradient_hooks(self):
        self.beside(gradient_hooks, [2])


class Control(BesideGloo):
    def test_a_difference_is_noticed(self):
        with self.assertRaisesRegex(AssertionError, "rank 0 of 2: stretto is not gloo"):
            self.beside(lambda rank: dist.get_backend())


if __name__ == "__main__":
    unittest.main()
