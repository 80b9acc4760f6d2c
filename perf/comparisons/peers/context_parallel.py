"""Measures attention over one long sequence whose tokens lie on several ranks, in PyTorch 2 over Gloo on processors: forward and
backward of a causal layer in fp32. It starts its own ranks, one thread each, and prints one JSON line.

PyTorch's own torch.distributed.tensor.experimental.context_parallel does not run on processors: it replaces the attention operators of
CUDA only, and scaled_dot_product_attention ends with "Operator aten._scaled_dot_product_flash_attention_for_cpu.default does not have a
sharding strategy registered" (2.15). This is the same method over the same operator, which returns the log-sum-exp that merging takes:
a ring in the zigzag order, in which only the parts of blocks are computed that are seen, and keys, values and gradients are in
flight while a block is computed. A rank's gradients for its own block never travel. Tensors are in the order of a model's rows
(batch, token, head) or, with --by-head, a head's tokens lie together in memory.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.multiprocessing
from torch import distributed
from torch.nn import functional

import gpt

attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Exchange:
    """A tensor on its way to the next rank, and that of the previous rank on its way here."""

    def __init__(self, tensor, to, source):
        self.arriving = torch.empty_like(tensor)
        self.works = distributed.batch_isend_irecv([distributed.P2POp(distributed.isend, tensor, to),
                                                    distributed.P2POp(distributed.irecv, self.arriving, source)])

    def wait(self):
        for work in self.works:
            work.wait()
        return self.arriving


class RingAttention(torch.autograd.Function):
    """q, k, v: [batch, heads, tokens, head size], where tokens are chunks rank and 2 size - 1 - rank of 2 size."""

    @staticmethod
    def seen(rank, source, half):
        """Which of a rank's queries see which keys of another, and whether the causal mask is needed."""
        if source == rank:
            return slice(None), slice(None), True
        return (slice(None), slice(half), False) if source < rank else (slice(half, None), slice(None), False)

    @staticmethod
    def forward(context, q, k, v):
        rank, size = distributed.get_rank(), distributed.get_world_size()
        block = torch.stack([k, v])
        for step in range(size):
            source = (rank - step) % size
            if step + 1 < size:
                exchange = Exchange(block, (rank + 1) % size, (rank - 1) % size)
            queries, keys, causal = RingAttention.seen(rank, source, q.shape[2] // 2)
            found, found_sum = attention(q[:, :, queries], block[0][:, :, keys], block[1][:, :, keys], is_causal=causal)
            if step == 0:
                out, log_sum_exp = found, found_sum.contiguous()
            else:
                kept, kept_sum = out[:, :, queries], log_sum_exp[:, :, queries]
                kept.lerp_(found, torch.sigmoid(found_sum - kept_sum).unsqueeze(-1))
                kept_sum.sub_(functional.logsigmoid(kept_sum - found_sum))
            if step + 1 < size:
                block = exchange.wait()
        context.save_for_backward(q, k, v, out, log_sum_exp)
        return out

    @staticmethod
    def backward(context, dout):
        q, k, v, out, log_sum_exp = context.saved_tensors
        rank, size = distributed.get_rank(), distributed.get_world_size()
        block, sums = torch.stack([k, v]), None
        for step in range(size):
            source = (rank - step) % size
            if step + 1 < size:
                exchange = Exchange(block, (rank + 1) % size, (rank - 1) % size)
            queries, keys, causal = RingAttention.seen(rank, source, q.shape[2] // 2)
            found, dk, dv = attention_backward(dout[:, :, queries], q[:, :, queries], block[0][:, :, keys], block[1][:, :, keys],
                                               out[:, :, queries], log_sum_exp[:, :, queries], 0.0, causal)
            if step == 0:
                dq, own = found, (dk, dv)
            else:
                dq[:, :, queries] += found
                passed = torch.zeros_like(block) if sums is None else sums.wait()
                passed[0][:, :, keys] += dk
                passed[1][:, :, keys] += dv
                sums = Exchange(passed, (rank + 1) % size, (rank - 1) % size)
            if step + 1 < size:
                block = exchange.wait()
        if sums is None:
            return dq, *own
        arrived = sums.wait()
        return dq, own[0] + arrived[0], own[1] + arrived[1]


def inputs_of(options):
    """Three tensors and a gradient, in the order of a model's rows unless --by-head."""
    shape = (options.batch, options.tokens, options.heads, options.head_size)
    tensors = [torch.randn(shape).transpose(1, 2) for _ in range(4)]
    if options.by_head:
        tensors = [tensor.contiguous() for tensor in tensors]
    return [tensor.requires_grad_() for tensor in tensors[:3]], tensors[3]


def check():
    """That a short sequence has the results of one rank."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    whole = [torch.randn(2, 3, 32 * size, 16).requires_grad_() for _ in range(3)]
    dout = torch.randn(2, 3, 32 * size, 16)
    expected = functional.scaled_dot_product_attention(*whole, is_causal=True)
    expected.backward(dout)

    def part(tensor):
        chunks = tensor.detach().chunk(2 * size, dim=2)
        return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]], dim=2)

    own = [part(tensor).requires_grad_() for tensor in whole]
    out = RingAttention.apply(*own)
    out.backward(part(dout))
    for found, wanted in [(out, expected), *((mine.grad, full.grad) for mine, full in zip(own, whole))]:
        torch.testing.assert_close(found, part(wanted), rtol=1e-4, atol=1e-4)


def slowest(seconds):
    times = torch.tensor(seconds, dtype=torch.float64)
    distributed.all_reduce(times, distributed.ReduceOp.MAX)
    return times.tolist()


def measure(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=options.nproc)
    check()
    options.tokens = options.seq_length // options.nproc
    torch.manual_seed(rank)
    inputs, dout = inputs_of(options)
    rounds = []
    for _ in range(options.rounds + 1):  # the first is not counted
        distributed.barrier()
        start = time.perf_counter()
        out = RingAttention.apply(*inputs)
        between = time.perf_counter()
        torch.autograd.backward(out, dout)
        end = time.perf_counter()
        rounds.append(slowest([between - start, end - between, end - start]))
        for tensor in inputs:
            tensor.grad = None
    if rank == 0:
        medians = [1e3 * statistics.median(column) for column in zip(*rounds[1:])]
        print(json.dumps({**dict(zip(("forward_ms", "backward_ms", "ms"), medians)), "torch": torch.__version__, "blas": gpt.blas()}),
              flush=True)
    distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(nproc=2, batch=1, seq_length=8192, heads=8, head_size=64, rounds=3).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--by-head", action="store_true", help="the tokens of a head lie together in memory")
    options = parser.parse_args()
    os.environ.update(gpt.fastest_environment())
    torch.multiprocessing.spawn(measure, (options, gpt.free_port()), nprocs=options.nproc)


if __name__ == "__main__":
    main()
