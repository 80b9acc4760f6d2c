"""Measures tokens per second of PyTorch FSDP2 (fully_shard) over Gloo on processors, training the GPT of gpt.py, which says
which ranks it starts and what it prints. It needs PyTorch 2.

One unit per block and one of the rest, which is FSDP2's usual cut, with its default resharding, in fp32. Tried on an AMD EPYC with
AVX-512, and kept where it was no slower: scaled_dot_product_attention instead of the masked softmax; fused AdamW instead of a loop or
foreach; gathers as asynchronous operations, since on processors FSDP2 otherwise waits for each, and prefetched by one block in both
passes (between hosts the step took 6% less). Left out: torch.compile of the blocks, with which a step took 20% longer.
"""
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gpt


def with_fsdp(options):
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = gpt.Gpt(options, gpt.FusedBlock)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model._set_unshard_async_op(True)
    for block, following in zip(model.blocks, list(model.blocks)[1:]):
        block.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([block])
    return gpt.DataParallel(options, model, fused=True)


if __name__ == "__main__":
    gpt.main(__doc__, with_fsdp)
