"""PyTorch 2's distributed checkpoints (torch.distributed.checkpoint)."""

import concurrent.futures
import functools
import pathlib
import tempfile
import unittest

import torch
import torch.distributed as dist

from beside_gloo import BesideGloo
from torch2_fsdp_test import mesh_of, sharded, values_of
from training import adam, losses_of


def folder_of_all():
    """A folder that all ranks know."""
    name = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name)
    return pathlib.Path(name[0])


def state_of(net, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    values, moments = get_state_dict(net, optimizer)
    return {"values": values, "moments": moments, "step": 7, "words": ["a", dist.get_world_size()]}


def saved_and_loaded(save, mesh_of_loading, rank):
    """Training goes on from what was loaded, as it would have gone on without."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    folder = folder_of_all()
    net = sharded()
    optimizer = adam(net.parameters())
    losses_of(net, optimizer, 0, steps=3)
    save(state_of(net, optimizer), folder)
    other = sharded(mesh=mesh_of_loading())
    again = adam(other.parameters())
    losses_of(other, again, 1, steps=1)  # so that there is something to overwrite
    state = state_of(other, again)
    state["step"] = 0
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(other, again, model_state_dict=state["values"], optim_state_dict=state["moments"])
    assert state["step"] == 7
    for one, two in zip(values_of(net), values_of(other)):
        assert torch.equal(one, two)
    files = len(list(folder.glob("*.distcp")))
    return losses_of(other, again, 0), losses_of(net, optimizer, 0), files


def plainly(state, folder):
    import torch.distributed.checkpoint as dcp

    dcp.save(state, checkpoint_id=folder)


def in_the_background(state, folder):
    import torch.distributed.checkpoint as dcp

    saving = dcp.async_save(state, checkpoint_id=folder, process_group=dist.new_group())
    total = torch.ones(10)  # the program's collectives go on meanwhile
    for _ in range(20):
        dist.all_reduce(total)
        total /= dist.get_world_size()
    assert isinstance(saving, concurrent.futures.Future)
    saving.result()


def over_a_group_of_its_own(state, folder):
    import torch.distributed.checkpoint as dcp

    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, single_file_per_rank=False, thread_count=2),
             process_group=dist.new_group())


def replicated_tensors(rank):
    """Written by one rank each, and read by all."""
    import torch.distributed.checkpoint as dcp

    folder = folder_of_all()
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(9, 9) for _ in range(4)]))
    optimizer = adam(net.parameters())
    net(torch.ones(2, 9)).sum().backward()
    optimizer.step()
    kept = {name: value.clone() for name, value in net.state_dict().items()}
    dcp.save({"net": net.state_dict()}, checkpoint_id=folder)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    dcp.load({"net": net.state_dict()}, checkpoint_id=folder)
    assert all(torch.equal(kept[name], value) for name, value in net.state_dict().items())
    return len(list(folder.glob("*.distcp")))


def tensors_in_other_places(rank):
    """DTensors of two dimensions of ranks, read into other placements; and a part of a checkpoint."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, zeros

    folder = folder_of_all()
    mesh = mesh_of(2, 2)
    whole = torch.arange(7.0 * 10).view(7, 10)
    dcp.save({"a": distribute_tensor(whole, mesh, [Shard(0), Shard(1)]), "b": torch.ones(3)}, checkpoint_id=folder)
    results = []
    for places in [[Replicate(), Replicate()], [Shard(1), Shard(0)], [Shard(0), Shard(0)], [Replicate(), Shard(1)]]:
        state = {"a": zeros(7, 10, device_mesh=mesh, placements=places)}
        dcp.load(state, checkpoint_id=folder)
        assert torch.equal(state["a"].full_tensor(), whole)
        results.append(state["a"].to_local())
    return results


def errors_are_those_of_all_ranks(rank):
    """What one rank cannot load fails on every rank."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    folder = folder_of_all()
    dcp.save({"a": torch.ones(3)}, checkpoint_id=folder)
    state = {"a": torch.zeros(3), **({"missing": torch.zeros(2)} if rank == 1 else {})}
    failed = []
    try:
        dcp.load(state, checkpoint_id=folder)
    except CheckpointException as error:
        failed = list(error.failures)
    assert failed == [1], failed
    state = {"a": torch.zeros(3)}
    dcp.load(state, checkpoint_id=folder)
    return state["a"]


class Checkpoint(BesideGloo):
    suite = "distributed checkpoint"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(setattr, tempfile, "tempdir", tempfile.tempdir)
        tempfile.tempdir = folder.name  # where the ranks, which are forks, make theirs

    def test_plainly(self):
        self.beside(functools.partial(saved_and_loaded, plainly, lambda: None))

    def test_in_the_background(self):
        self.beside(functools.partial(saved_and_loaded, in_the_background, lambda: None))

    def test_over_a_group_of_its_own(self):
        self.beside(functools.partial(saved_and_loaded, over_a_group_of_its_own, lambda: None), [3])

    def test_into_another_mesh(self):
        self.beside(functools.partial(saved_and_loaded, plainly, lambda: mesh_of(2, 2)), [4])

    def test_replicated_tensors(self):
        self.beside(replicated_tensors, [2, 3])

    def test_tensors_in_other_places(self):
        self.beside(tensors_in_other_places, [4])

    def test_errors_are_those_of_all_ranks(self):
        self.beside(errors_are_those_of_all_ranks)


if __name__ == "__main__":
    unittest.main()
