"""The same small model, trained over Stretto and over Gloo in the same processes."""

import unittest

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import ranks
import stretto_torch
from training import STEPS, adam, losses_of, model


def train(group, rank, optimizer_of, hook=None, steps=STEPS, **arguments):
    """The losses, and the parameters at the end."""
    net = DistributedDataParallel(model(), process_group=group, **arguments)
    if hook is not None:
        net.register_comm_hook(None, hook)
    losses = losses_of(net, optimizer_of(net.parameters(), group), rank, steps)
    return losses, [parameter.detach().clone() for parameter in net.parameters()]


def zero(parameters, group):
    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, process_group=group, lr=1e-2)


def as_gloo(rank):
    peer = ranks.gloo()
    bitwise = dist.get_world_size() == 2  # a sum of two has one order
    for name, optimizer_of in {"adam": adam, "zero": zero}.items():
        # Buckets of a few kilobytes, so that there are several.
        for arguments in [{}, {"bucket_cap_mb": 0.01}, {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True}]:
            ours, our_parameters = train(dist.group.WORLD, rank, optimizer_of, **arguments)
            theirs, their_parameters = train(peer, rank, optimizer_of, **arguments)
            if bitwise:
                assert ours == theirs, f"{name} {arguments}: {ours} is not {theirs}"
            assert all(abs(a - b) < 1e-4 for a, b in zip(ours, theirs)), f"{name} {arguments}: {ours} is not {theirs}"
            for one, other in zip(our_parameters, their_parameters):
                assert torch.allclose(one, other, atol=1e-4), name
    return ours


def with_hooks(rank):
    def sgd(parameters, group):
        return torch.optim.SGD(parameters, lr=0.1)

    def last(hook):
        losses, parameters = train(dist.group.WORLD, rank, sgd, hook, steps=60, bucket_cap_mb=0.01)
        everywhere = [None] * dist.get_world_size()
        dist.all_gather_object(everywhere, [parameter.sum().item() for parameter in parameters])
        assert everywhere.count(everywhere[0]) == len(everywhere), "the ranks' parameters differ"
        total = torch.tensor([sum(losses[-10:]) / 10, losses[0]])
        dist.all_reduce(total, dist.ReduceOp.AVG)
        return total.tolist()

    hooks = stretto_torch.hooks
    plain, first = last(None)
    result = {"first": first, "plain": plain}
    result["int8"] = last(hooks.quantized(bits=8))[0]
    result["int4"] = last(hooks.quantized(bits=4))[0]
    result["onebit"] = last(hooks.onebit())[0]
    exact = last(hooks.onebit(plain_steps=60))[0]
    assert exact == plain, f"{exact} is not {plain}"

    # What is left out of one sum is in the next ones: the mean of many is exact, and without that state it is not.
    def mean_of(errors):
        backend = stretto_torch.backend_of()
        mean = torch.zeros(3000)
        for _ in range(100):
            some = torch.linspace(-1, 2, 3000) * (rank + 1)
            backend.quantized_average(some, "onebit", errors=errors, name="some").wait()
            mean += some / 100
        right = torch.linspace(-1, 2, 3000) * (dist.get_world_size() + 1) / 2
        return (mean - right).abs().max().item()

    result["with errors"] = mean_of(stretto_torch._C.ErrorFeedback())
    result["without"] = mean_of(None)
    return result


def with_onebit_adam(rank):
    arguments = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    frozen_at, steps = 20, 80

    def trained(make, hook_of=lambda optimizer: None):
        net = DistributedDataParallel(model(), bucket_cap_mb=0.01)
        optimizer = make(net.parameters())
        hook = hook_of(optimizer)
        if hook is not None:
            net.register_comm_hook(None, hook)
        return losses_of(net, optimizer, rank, steps), torch.cat([parameter.detach().flatten() for parameter in net.parameters()])

    def onebit(freeze_step):
        return trained(lambda parameters: stretto_torch.OneBitAdam(parameters, freeze_step=freeze_step, **arguments),
                       lambda optimizer: optimizer.hook())

    class Frozen(stretto_torch.OneBitAdam):
        """The same equations without rounding: gradients are averaged exactly, and each rank makes the momentum of the mean."""

        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    if self.is_frozen(parameter):
                        parameter.grad.mul_(0.1).add_(self.state[parameter]["m"], alpha=0.9)
            super().step()

    adamw, adamw_parameters = trained(lambda parameters: torch.optim.AdamW(parameters, **arguments))
    never, never_parameters = onebit(steps)
    assert torch.allclose(never_parameters, adamw_parameters, atol=1e-6), "before the freeze it is AdamW"
    losses, parameters = onebit(frozen_at)
    assert losses[:frozen_at] == never[:frozen_at] and losses[frozen_at + 2:] != never[frozen_at + 2:]
    exact, exact_parameters = trained(lambda parameters: Frozen(parameters, freeze_step=frozen_at, **arguments),
                                      lambda optimizer: stretto_torch.hooks.average())
    if dist.get_world_size() == 1:
        assert torch.allclose(parameters, exact_parameters, atol=1e-5), (parameters - exact_parameters).abs().max()
    else:
        assert not torch.allclose(parameters, exact_parameters, atol=1e-6), "the control: it rounds"
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, parameters.tolist())
    assert everywhere.count(everywhere[0]) == len(everywhere), "the ranks' parameters differ"
    total = torch.tensor([sum(each[-10:]) / 10 for each in (losses, exact, adamw)] + [losses[0]])
    dist.all_reduce(total, dist.ReduceOp.AVG)
    return total.tolist()


def onebit_adam_of_all(gradients, weight, frozen_at, arguments, compresses=True, feeds_back=True):
    """The weights by OneBitAdam's equations, all ranks in one process. gradients: by step and rank."""
    ranks_of_sum, size = len(gradients[0]), weight.numel()
    bounds = [size // ranks_of_sum * rank + min(rank, size % ranks_of_sum) for rank in range(ranks_of_sum + 1)]
    (beta1, beta2), lr = arguments["betas"], arguments["lr"]

    def compressed(x):
        if not compresses:
            return x
        groups = [group for begin, end in zip(bounds, bounds[1:]) for group in x[begin:end].split(1024)]
        return torch.cat([torch.where(group < 0, -1.0, 1.0).to(x) * group.abs().mean() for group in groups])

    weight, m, v, of_mean = weight.double(), torch.zeros(size).double(), torch.zeros(size).double(), torch.zeros(size).double()
    of_ranks = [torch.zeros(size).double() for _ in range(ranks_of_sum)]
    for step, own in enumerate(gradients, 1):
        own, moments = [gradient.double() for gradient in own], min(step, frozen_at)
        if step <= frozen_at:
            mean = sum(own) / ranks_of_sum
            m, v = beta1 * m + (1 - beta1) * mean, beta2 * v + (1 - beta2) * mean**2
        else:
            sent = [beta1 * m + (1 - beta1) * gradient + error for gradient, error in zip(own, of_ranks)]
            arrived = [compressed(each) for each in sent]
            mean = sum(arrived) / ranks_of_sum + of_mean
            m = compressed(mean)
            if feeds_back:
                of_ranks, of_mean = [each - got for each, got in zip(sent, arrived)], mean - m
        change = m / (1 - beta1**moments) / ((v / (1 - beta2**moments)).sqrt() + arguments["eps"])
        if step > frozen_at:
            most = (1 - beta1) / ((1 - beta2) * (1 - beta1**2 / beta2))**0.5
            change = change.clamp(-most, most)
        weight = weight * (1 - lr * arguments["weight_decay"]) - lr * change
    return weight


def with_onebit_adam_of_all(rank):
    """Beside the equations in one process: gradients that do not depend on the weights."""
    arguments = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    size, frozen_at, steps = 3001, 3, 9
    gradients = [[torch.randn(size, generator=torch.Generator().manual_seed(100 * step + of)) + 0.2
                  for of in range(dist.get_world_size())] for step in range(steps)]

    class Products(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(-1, 1, size))

        def forward(self, factors):
            return (self.weight * factors).sum()

    net = DistributedDataParallel(Products())
    optimizer = stretto_torch.OneBitAdam(net.parameters(), freeze_step=frozen_at, **arguments)
    net.register_comm_hook(None, optimizer.hook())
    for own in gradients:
        optimizer.zero_grad()
        net(own[rank]).backward()
        optimizer.step()
    found = next(net.parameters()).detach().double()

    def farthest(**how):
        return (onebit_adam_of_all(gradients, torch.linspace(-1, 1, size), frozen_at, arguments, **how) - found).abs().max().item()

    assert farthest() < 1e-5, farthest()
    assert farthest(compresses=False) > 1e-3 and farthest(feeds_back=False) > 1e-3, "the controls"


def with_powersgd(rank):
    """PyTorch's own hook whose callbacks start collectives, in several buckets (DDP fills the first one up to 1 MiB)."""
    def wide():
        torch.manual_seed(0)
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(400, 400), torch.nn.GELU())]
        return torch.nn.Sequential(torch.nn.Linear(20, 400), *layers, torch.nn.Linear(400, 3))

    def parameters_after(group, start, waits):
        net = DistributedDataParallel(wide(), process_group=group, bucket_cap_mb=0.01)
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=start,
                                            min_compression_rate=1)
        buckets = set()

        def hook(state, bucket):
            buckets.add(bucket.index())
            future = powerSGD_hook.powerSGD_hook(state, bucket)
            if waits:
                future.wait()
            return future

        net.register_comm_hook(state, hook)
        losses_of(net, torch.optim.SGD(net.parameters(), lr=0.1), rank)
        assert len(buckets) > 2, buckets
        return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])

    ours = parameters_after(dist.group.WORLD, 2, False)
    theirs = parameters_after(ranks.gloo(), 2, True)  # Gloo's ranks take one bucket's collectives for another's, else
    uncompressed = parameters_after(dist.group.WORLD, STEPS + 1, False)
    assert (ours - theirs).abs().max() < 1e-5, (ours - theirs).abs().max()
    assert (ours - uncompressed).abs().max() > 1e-4, (ours - uncompressed).abs().max()  # the control


class Training(unittest.TestCase):
    def test_as_gloo_on_2_ranks(self):
        losses = ranks.run(2, as_gloo)[0]
        self.assertLess(losses[-1], losses[0])

    def test_as_gloo_on_4_ranks(self):
        ranks.run(4, as_gloo)

    def test_with_hooks(self):
        for size in [2, 4]:
            got = ranks.run(size, with_hooks)[0]
            self.assertLess(got["plain"], 0.8 * got["first"])
            self.assertLess(abs(got["int8"] - got["plain"]), 0.02 * got["plain"], got)
            self.assertLess(abs(got["int4"] - got["plain"]), 0.1 * got["plain"], got)
            self.assertLess(got["onebit"], 0.9 * got["first"], got)
            self.assertLess(got["with errors"], 0.2, got)
            self.assertGreater(got["without"], 0.4, got)

    def test_onebit_adam(self):
        for size in [1, 2, 4]:
            onebit, exact, adamw, first = ranks.run(size, with_onebit_adam)[0]
            self.assertLess(adamw, 0.8 * first)
            self.assertLess(onebit, 0.9 * first, (onebit, exact, adamw, first))

    def test_onebit_adam_beside_its_equations(self):
        for size in [2, 3]:
            ranks.run(size, with_onebit_adam_of_all)

    def test_with_powersgd(self):
        for size in [2, 3]:
            ranks.run(size, with_powersgd)

    def test_another_model_is_noticed(self):  # the control
        def body(rank):
            peer = ranks.gloo()
            ours = train(dist.group.WORLD, rank, adam)[0]
            theirs = train(peer, 1 - rank if rank == 0 else rank, adam)[0]
            assert ours == theirs, "the losses differ"

        with self.assertRaisesRegex(AssertionError, "the losses differ"):
            ranks.run(2, body)


if __name__ == "__main__":
    unittest.main()
