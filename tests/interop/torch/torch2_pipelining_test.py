"""PyTorch 2's torch.distributed.pipelining: every schedule, and together with data parallelism."""

import functools
import unittest

import torch
import torch.distributed as dist

from beside_gloo import BesideGloo


def layers_of(count):
    torch.manual_seed(0)
    return [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(count)]


def data(replica=0):
    generator = torch.Generator().manual_seed(7 + replica)
    return torch.randn(16, 8, generator=generator), torch.randn(16, 8, generator=generator)


loss_of = torch.nn.functional.mse_loss


def places(name, size, rank):
    """The stages of a rank: those of a V have the last one beside the first one."""
    if name == "ScheduleZBVZeroBubble" or name == "ScheduleDualPipeV":
        return [rank, 2 * size - 1 - rank]
    if name in ("ScheduleGPipe", "Schedule1F1B"):
        return [rank]
    return [rank, size + rank]


def pipelined(name, rank, group=None, wrap=lambda layer: layer, replica=0):
    """A rank's losses, outputs and gradients after a step."""
    import torch.distributed.pipelining as pipelining
    from torch.distributed.pipelining import schedules

    size, rank = dist.get_world_size(group), dist.get_rank(group)
    mine = places(name, size, rank)
    layers = layers_of(size * len(mine))
    stages = [pipelining.PipelineStage(wrap(layers[place]), place, len(layers), torch.device("cpu"), group=group)
              for place in mine]
    schedule = getattr(schedules, name)(stages if len(mine) > 1 else stages[0], 2 * size, loss_fn=loss_of)
    inputs, targets = data(replica)
    last = len(layers) - 1 in mine
    losses = []
    arguments = [inputs] if 0 in mine else []
    outputs = schedule.step(*arguments, **({"target": targets, "losses": losses} if last else {}))
    gradients = [parameter.grad for place in mine for parameter in layers[place].parameters()]
    if not replica and wrap.__name__ == "<lambda>":
        whole = torch.nn.Sequential(*layers_of(len(layers)))
        expected = loss_of(whole(inputs), targets)
        expected.backward()
        wanted = [parameter.grad for place in mine for parameter in whole[place].parameters()]
        assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(gradients, wanted))
        assert not last or torch.allclose(torch.stack(losses).mean(), expected)
    return [loss.detach() for loss in losses], outputs.detach() if last else None, gradients


def evaluated(rank):
    """Forward only."""
    import torch.distributed.pipelining as pipelining

    size = dist.get_world_size()
    stage = pipelining.PipelineStage(layers_of(size)[rank], rank, size, torch.device("cpu"))
    schedule = pipelining.ScheduleGPipe(stage, 4)
    with torch.no_grad():
        return [schedule.eval(*([data()[0]] if rank == 0 else [])) for _ in range(3)][-1]


def divided_by_tracing(rank):
    """Stages that PyTorch cuts from a model."""
    from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline

    size = dist.get_world_size()
    net = torch.nn.Sequential(*layers_of(2 * size))
    inputs, targets = data()
    pipe = pipeline(net, (inputs[:4],), split_spec={str(2 * cut): SplitPoint.BEGINNING for cut in range(1, size)})
    schedule = ScheduleGPipe(pipe.build_stage(rank, torch.device("cpu")), 4, loss_fn=loss_of)
    losses = []
    schedule.step(*([inputs] if rank == 0 else []),
                  **({"target": targets, "losses": losses} if rank == size - 1 else {}))
    return [loss.detach() for loss in losses], [parameter.grad for parameter in pipe.get_stage_module(rank).parameters()]


def with_data_parallelism(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))
    results = []
    for name, wrap in [("Schedule1F1B", functools.partial(torch.nn.parallel.DistributedDataParallel, device_mesh=mesh["data"])),
                       ("ScheduleInterleaved1F1B", functools.partial(fully_shard, mesh=mesh["data"]))]:
        def wrapped(layer, wrap=wrap):
            return wrap(layer)

        losses, outputs, gradients = pipelined(name, rank, mesh["pipeline"].get_group(), wrapped, replica=rank // 2)
        results.append([losses, outputs, [getattr(each, "full_tensor", each.detach)() for each in gradients]])
    return results


class Pipelining(BesideGloo):
    suite = "pipelining"

    def beside_schedule(self, name):
        self.beside(functools.partial(pipelined, name))

    def test_gpipe(self):
        self.beside_schedule("ScheduleGPipe")

    def test_1f1b(self):
        self.beside_schedule("Schedule1F1B")

    def test_looped_bfs(self):
        self.beside_schedule("ScheduleLoopedBFS")

    def test_interleaved_1f1b(self):
        self.beside_schedule("ScheduleInterleaved1F1B")

    def test_interleaved_zero_bubble(self):
        self.beside_schedule("ScheduleInterleavedZeroBubble")

    def test_zero_bubble_v(self):
        self.beside_schedule("ScheduleZBVZeroBubble")

    def test_dual_pipe_v(self):
        self.beside_schedule("ScheduleDualPipeV")

    def test_evaluated(self):
        self.beside(evaluated)

    def test_divided_by_tracing(self):
        self.beside(divided_by_tracing)

    def test_with_data_parallelism(self):
        self.beside(with_data_parallelism, [4])


if __name__ == "__main__":
    unittest.main()
