"""What PyTorch 2 adds: FSDP2, DTensor, functional collectives, pipelining. Beside Gloo."""

import unittest

import torch
import torch.distributed as dist

import ranks
from training import adam, losses_of, model


def meshes():
    """All ranks, once over Stretto and once over Gloo."""
    from torch.distributed.device_mesh import DeviceMesh

    everybody = list(range(dist.get_world_size()))
    return {name: DeviceMesh.from_group(group, "cpu", everybody)
            for name, group in {"ours": dist.group.WORLD, "theirs": ranks.gloo()}.items()}


def fully_sharded(rank):
    from torch.distributed.fsdp import fully_shard

    losses = {}
    for name, mesh in meshes().items():
        net = model()
        for layer in net:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        losses[name] = losses_of(net, adam(net.parameters()), rank)
    check(losses)


def check(losses):
    ours, theirs = losses["ours"], losses["theirs"]
    if dist.get_world_size() == 2:  # a sum of two has one order
        assert ours == theirs, f"{ours} is not {theirs}"
    assert all(abs(a - b) < 1e-4 for a, b in zip(ours, theirs)), f"{ours} is not {theirs}"
    assert ours[-1] < ours[0], ours


def tensor_parallel(rank):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    losses = {}
    for name, mesh in meshes().items():
        net = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        losses[name] = losses_of(net, torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False), 0)
        # Every change of placement: all-gather, all-to-all, all-reduce, reduce-scatter.
        whole = torch.arange(48.0).reshape(8, 6)
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        assert torch.equal(rows.redistribute(mesh, [Replicate()]).to_local(), whole)
        assert torch.equal(rows.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
        from torch.distributed.tensor import Partial

        partial = DTensor.from_local(whole, mesh, [Partial()])
        assert torch.equal(partial.redistribute(mesh, [Replicate()]).to_local(), whole * mesh.size())
        assert torch.equal(partial.redistribute(mesh, [Shard(0)]).full_tensor(), whole * mesh.size())
    check(losses)


def functional(rank):
    import torch.distributed._functional_collectives as functional

    size = dist.get_world_size()
    group = dist.group.WORLD
    mine = torch.arange(8.0 * size) + rank
    total = torch.arange(8.0 * size) * size + sum(range(size))
    assert torch.equal(functional.all_reduce(mine, "sum", group) + 0, total)
    assert torch.equal(functional.all_gather_tensor(mine, 0, group) + 0,
                       torch.cat([torch.arange(8.0 * size) + other for other in range(size)]))
    assert torch.equal(functional.reduce_scatter_tensor(mine, "sum", 0, group) + 0, total.chunk(size)[rank])
    got = functional.all_reduce_coalesced([mine, mine[:3]], "sum", group)
    assert torch.equal(got[0] + 0, total) and torch.equal(got[1] + 0, total[:3])
    got = functional.all_gather_into_tensor_coalesced([mine, mine[:2]], group)
    assert got[1].numel() == 2 * size
    got = functional.reduce_scatter_tensor_coalesced([mine, mine], "sum", [0, 0], group)
    assert torch.equal(got[1] + 0, total.chunk(size)[rank])
    swapped = functional.all_to_all_single(mine, None, None, group) + 0
    assert torch.equal(swapped, torch.cat([torch.arange(8.0) + 8 * rank + other for other in range(size)]))

    # The coalescing manager.
    parts = [torch.full((n,), float(rank)) for n in range(1, 4)]
    with dist._coalescing_manager(group, async_ops=True) as works:
        for part in parts:
            dist.all_reduce(part)
    works.wait()
    for part in parts:
        assert torch.equal(part, torch.full_like(part, float(sum(range(size)))))


def pipelined(rank):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    size = dist.get_world_size()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8) for _ in range(size)]
    inputs, targets = torch.randn(8, 8), torch.randn(8, 8)
    whole = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(size)])
    whole.load_state_dict(torch.nn.Sequential(*layers).state_dict())
    expected = torch.nn.functional.mse_loss(whole(inputs), targets)
    expected.backward()
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
    losses = []
    if rank == 0:
        schedule.step(inputs, **({"target": targets, "losses": losses} if size == 1 else {}))
    elif rank == size - 1:
        schedule.step(target=targets, losses=losses)
        assert torch.allclose(torch.stack(losses).mean(), expected), (losses, expected)
    else:
        schedule.step()
    # Schedules divide the sum over microbatches by their number.
    assert torch.allclose(layers[rank].weight.grad, whole[rank].weight.grad, atol=1e-5)


@unittest.skipIf(int(torch.__version__.split(".")[0]) < 2, f"PyTorch {torch.__version__} has none of it")
class Torch2(unittest.TestCase):
    def both_sizes(self, body):
        for size in [2, 4]:
            ranks.run(size, body)

    def test_fully_sharded(self):
        self.both_sizes(fully_sharded)

    def test_tensor_parallel(self):
        self.both_sizes(tensor_parallel)

    def test_functional(self):
        self.both_sizes(functional)

    def test_pipelined(self):
        self.both_sizes(pipelined)


if __name__ == "__main__":
    unittest.main()
