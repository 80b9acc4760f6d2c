"""PyTorch 2's sharded data parallelism: FSDP2 (fully_shard) and FSDP (FullyShardedDataParallel)."""

import functools
import unittest

import torch
import torch.distributed as dist

from beside_gloo import BesideGloo
from training import adam, batch, losses_of, model


def mesh_of(*shape):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape or (dist.get_world_size(),), mesh_dim_names=("replicate", "shard")[-len(shape or (1,)):])


def sharded(net=None, **arguments):
    from torch.distributed.fsdp import fully_shard

    net = model() if net is None else net
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, **arguments)
    return fully_shard(net, **arguments)


def values_of(net):
    return [parameter.full_tensor().detach() for parameter in net.parameters()]


def trained(net, rank):
    return losses_of(net, adam(net.parameters()), rank), values_of(net)


def plain(rank):
    losses, values = trained(sharded(), rank)
    assert losses[-1] < losses[0], losses
    return losses, values


def uneven_parameters(rank):
    torch.manual_seed(0)
    return trained(sharded(torch.nn.Sequential(torch.nn.Linear(20, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))), rank)


def kept_after_forward(rank):
    return trained(sharded(reshard_after_forward=False), rank)


def gathered_within_2_ranks(rank):
    return trained(sharded(reshard_after_forward=2), rank)


def narrow_types(rank):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    return trained(sharded(mp_policy=policy), rank)


def hybrid(rank):
    return trained(sharded(mesh=mesh_of(2, 2)), rank)


def accumulated_and_clipped(rank):
    net = sharded()
    optimizer = adam(net.parameters())
    norms = []
    for step in range(6):
        last = step % 3 == 2
        net.set_requires_gradient_sync(last)
        inputs, targets = batch(step, rank)
        torch.nn.functional.mse_loss(net(inputs), targets).backward()
        if last:
            norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1).full_tensor())
            optimizer.step()
            optimizer.zero_grad()
    return norms, values_of(net)


def divided_by_a_factor(rank):
    net = sharded()
    for layer in [net, *net]:
        if hasattr(layer, "set_gradient_divide_factor"):
            layer.set_gradient_divide_factor(3.0)
            layer.set_force_sum_reduction_for_comms(dist.get_backend() == "gloo")  # which has no PREMUL_SUM
    inputs, targets = batch(0, rank)
    (1000 * torch.nn.functional.mse_loss(net(inputs), targets)).backward()
    return [parameter.grad.full_tensor() for parameter in net.parameters()]


def recomputed_and_prefetched(rank):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    net = torch.nn.Sequential(*[checkpoint_wrapper(layer) if isinstance(layer, torch.nn.Linear) else layer for layer in model()])
    layers = [fully_shard(layer) for layer in net if not isinstance(layer, torch.nn.GELU)]
    for layer, after in zip(layers, layers[1:]):
        layer.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([layer])
    return trained(fully_shard(net), rank)


def whole_state(rank):
    """The full state on rank 0, and from there into another model."""
    from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
                                                         set_model_state_dict, set_optimizer_state_dict)

    net = sharded()
    optimizer = adam(net.parameters())
    losses_of(net, optimizer, rank, steps=2)
    everything = StateDictOptions(full_state_dict=True, cpu_offload=True)
    values, state = get_model_state_dict(net, options=everything), get_optimizer_state_dict(net, optimizer, options=everything)
    assert (rank == 0) == bool(values), list(values)
    kept = {name: value.clone() for name, value in values.items()}
    other = sharded(torch.nn.Sequential(*model()))
    again = adam(other.parameters())
    from_first = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, values, options=from_first)
    set_optimizer_state_dict(other, again, state, options=from_first)
    assert all(torch.equal(one, two) for one, two in zip(values_of(net), values_of(other)))
    return losses_of(other, again, rank), kept


def flat(rank, **arguments):
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    net = FullyShardedDataParallel(model(), auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}), device_id=torch.device("cpu"),
                                   **arguments)
    optimizer = adam(net.parameters())
    losses = losses_of(net, optimizer, rank)
    assert losses[-1] < losses[0], losses
    norm = net.clip_grad_norm_(0.1)
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.FULL_STATE_DICT):
        state = FullyShardedDataParallel.optim_state_dict(net, optimizer)
        values = net.state_dict()
    moments = [each["exp_avg"] for _, each in sorted(state["state"].items())]
    return losses, norm, dict(values), moments


def flat_with_strategy(name):
    from torch.distributed.fsdp import ShardingStrategy

    return functools.partial(flat, sharding_strategy=ShardingStrategy[name], use_orig_params=True)


def flat_in_bf16(rank):
    from torch.distributed.fsdp import MixedPrecision

    return flat(rank, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))


def flat_hybrid(rank):
    from torch.distributed.fsdp import ShardingStrategy

    return flat(rank, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh_of(2, 2))


class FullyShard(BesideGloo):
    suite = "FSDP2"

    def test_plain(self):
        self.beside(plain, [2, 3, 4])

    def test_uneven_parameters(self):
        self.beside(uneven_parameters, [2, 3])

    def test_kept_after_forward(self):
        self.beside(kept_after_forward)

    def test_gathered_within_2_ranks(self):
        self.beside(gathered_within_2_ranks, [4])

    def test_narrow_types(self):
        self.beside(narrow_types, [2])

    def test_hybrid(self):
        self.beside(hybrid, [4])

    def test_accumulated_and_clipped(self):
        self.beside(accumulated_and_clipped)

    def test_divided_by_a_factor(self):
        self.beside(divided_by_a_factor, [3])  # PREMUL_SUM rounds otherwise than a division after the sum

    def test_recomputed_and_prefetched(self):
        self.beside(recomputed_and_prefetched)

    def test_whole_state(self):
        self.beside(whole_state)


class FullyShardedDataParallel(BesideGloo):
    suite = "FSDP"

    def test_full_shard(self):
        self.beside(flat)

    def test_shard_grad_op(self):
        self.beside(flat_with_strategy("SHARD_GRAD_OP"))

    def test_no_shard(self):
        self.beside(flat_with_strategy("NO_SHARD"), [2])

    def test_in_bf16(self):
        self.beside(flat_in_bf16, [2])

    def test_hybrid_shard(self):
        self.beside(flat_hybrid, [4])


if __name__ == "__main__":
    unittest.main()
