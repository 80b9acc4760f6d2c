"""PyTorch 2's DTensor and its tensor parallelism."""

import itertools
import unittest

import torch
import torch.distributed as dist

from beside_gloo import BesideGloo
from torch2_fsdp_test import mesh_of
from training import STEPS, losses_of, model


def whole(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-8, 8, shape, generator=generator).float()


def every_change_of_placement(rank):
    """From each placement into each other one, also where the rows are not divided evenly."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = mesh_of()
    placements = [Replicate(), Shard(0), Shard(1), Shard(-1)]
    results = []
    for shape in [(8, 8, 4), (7, 5, 3), (3, 1, 1)]:
        tensor = whole(*shape)
        for one, other in itertools.product(placements, placements):
            divided = distribute_tensor(tensor, mesh, [one])
            changed = divided.redistribute(mesh, [other])
            assert torch.equal(changed.full_tensor(), tensor), (shape, one, other)
            results.append(changed.to_local())
    return results


def every_partial_sum(rank):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = mesh_of()
    results = []
    for op in ["sum", "avg", "max", "min", "product"]:
        for other in [Replicate(), Shard(0), Shard(1)]:
            partial = DTensor.from_local(whole(8, 5) + rank, mesh, [Partial(op)])
            results.append(partial.redistribute(mesh, [other]).to_local())
    return results


def two_dimensions(rank):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = mesh_of(2, 2)
    placements = [Replicate(), Shard(0), Shard(1)]
    tensor = whole(6, 5)
    results = []
    for one in itertools.product(placements, placements):
        divided = distribute_tensor(tensor, mesh, one)
        for other in itertools.product(placements, placements):
            changed = divided.redistribute(mesh, other)
            assert torch.equal(changed.full_tensor(), tensor), (one, other)
            results.append(changed.to_local())
    summed = DTensor.from_local(tensor + rank, mesh, [Partial(), Shard(0)])
    return results, summed.full_tensor(), mesh["shard"].get_local_rank(), mesh["replicate"].get_local_rank()


def operations(rank):
    """Products, norms, sums, embeddings and losses of divided tensors, and their gradients."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = mesh_of()
    results = []
    for left, right in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2):
        one = distribute_tensor(whole(8, 12), mesh, [left]).requires_grad_()
        two = distribute_tensor(whole(12, 8), mesh, [right]).requires_grad_()
        product = one @ two
        product.pow(2).sum().backward()
        results += [product.full_tensor().detach(), one.grad.full_tensor(), two.grad.full_tensor()]
    for place in [Replicate(), Shard(0), Shard(1)]:
        rows = distribute_tensor(whole(8, 12), mesh, [place]).requires_grad_()
        for made in [rows.softmax(1), rows.softmax(0), rows.mean(0), rows.sum(1), rows.max(), rows.norm(), rows.std(),
                     torch.nn.functional.layer_norm(rows, [12]), rows.view(4, 2, 12), rows.t().contiguous(),
                     torch.cat([rows, rows]), rows.argmax(1), rows.cumsum(0), rows.sort(1)[0], rows[2:5]]:
            results.append(made.full_tensor().detach())
        table = distribute_tensor(whole(16, 8), mesh, [place]).requires_grad_()
        words = torch.nn.functional.embedding(distribute_tensor(torch.arange(16).view(4, 4), mesh, [Replicate()]), table)
        words = words.full_tensor()
        words.sum().backward()
        results += [words.detach(), table.grad.full_tensor()]
    return results


def only_the_first_rank_has_it(rank):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    tensor = whole(8, 6) if rank == 0 else torch.zeros(8, 6)
    return [distribute_tensor(tensor, mesh_of(), [place]).full_tensor() for place in [Shard(0), Shard(1), Replicate()]]


def tensor_parallel(rank):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    net = parallelize_module(model(), mesh_of(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    losses = losses_of(net, torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False), 0)
    assert losses[-1] < losses[0], losses
    return losses


class Block(torch.nn.Module):
    """A layer of a transformer, small."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)

    def forward(self, values):
        return values + self.down(torch.nn.functional.gelu(self.up(self.norm(values))))


def sequence_parallel(rank):
    """An embedding divided by rows, two blocks over the parts of a sequence, and a loss over a divided vocabulary."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                                   parallelize_module)

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(32, 16), Block(), Block(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 32))
    plan = {"0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "3": SequenceParallel(),
            "4": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)}
    for block in ["1", "2"]:
        plan |= {f"{block}.norm": SequenceParallel(),
                 f"{block}.up": ColwiseParallel(input_layouts=Shard(1)),
                 f"{block}.down": RowwiseParallel(output_layouts=Shard(1))}
    parallelize_module(net, mesh_of(), plan)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, foreach=False)
    words = torch.randint(0, 32, (3, 9), generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with loss_parallel():
            loss = torch.nn.functional.cross_entropy(net(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        losses.append(loss.full_tensor().item())
    assert losses[-1] < losses[0], losses
    return losses


def tensor_parallel_and_sharded(rank):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = mesh_of(2, 2)
    net = parallelize_module(model(), mesh["shard"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["replicate"])
    losses = losses_of(net, torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False), rank // 2)
    return losses, [parameter.full_tensor().detach() for parameter in net.parameters()]


def convolution(rank):
    """Its ranks exchange the edges of their parts by messages."""
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    torch.manual_seed(0)
    mesh = mesh_of()
    divided = distribute_module(torch.nn.Conv2d(3, 4, 3, padding=1), mesh)
    made = divided(distribute_tensor(whole(2, 3, 8, 16), mesh, [Shard(3)]))
    made.sum().backward()
    return made.to_local().detach(), divided.weight.grad.redistribute(mesh, [Replicate()]).to_local()


def data_parallel_over_a_mesh(rank):
    """DistributedDataParallel's group is a dimension of a mesh."""
    mesh = mesh_of(2, 2)
    net = torch.nn.parallel.DistributedDataParallel(model(), device_mesh=mesh["replicate"])
    losses = losses_of(net, torch.optim.SGD(net.parameters(), lr=0.1), rank)
    numbers = torch.tensor([float(rank)])
    dist.all_reduce(numbers, group=mesh["shard"].get_group())
    joined = mesh["replicate", "shard"]._flatten("all")
    dist.all_reduce(numbers, group=joined.get_group())
    return losses, numbers


class DTensor(BesideGloo):
    suite = "DTensor"

    def test_every_change_of_placement(self):
        self.beside(every_change_of_placement, [2, 3])

    def test_every_partial_sum(self):
        self.beside(every_partial_sum)

    def test_two_dimensions(self):
        self.beside(two_dimensions, [4])

    def test_operations(self):
        self.beside(operations)

    def test_only_the_first_rank_has_it(self):
        self.beside(only_the_first_rank_has_it, [2, 3])

    def test_convolution(self):
        self.beside(convolution)


class TensorParallel(BesideGloo):
    suite = "tensor parallelism"

    def test_tensor_parallel(self):
        self.beside(tensor_parallel)

    def test_sequence_parallel(self):
        self.beside(sequence_parallel)

    def test_tensor_parallel_and_sharded(self):
        self.beside(tensor_parallel_and_sharded, [4])

    def test_data_parallel_over_a_mesh(self):
        self.beside(data_parallel_over_a_mesh, [4])


if __name__ == "__main__":
    unittest.main()
