"""Measures tokens per second of PyTorch FSDP2 (fully_shard) over Gloo on processors, training the GPT of ddp_gpt.py, whose flags and
output it has. It needs PyTorch 2.

One unit per block and one of the rest, which is FSDP2's usual cut, with its default resharding, in fp32. Tried on an AMD EPYC with
AVX-512, 2 ranks of 1 thread, and kept where it was faster or no slower: scaled_dot_product_attention instead of the masked softmax (2% less
processor time); fused AdamW instead of a loop or foreach; gathers as asynchronous operations, since on processors FSDP2 otherwise waits
for each, and prefetched by one block in both passes (6% faster between hosts). torch.compile of the blocks made a step 20% slower.
"""
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ddp_gpt


def with_fsdp(options):
    """The model that ranks train together, and the form of AdamW that is fastest with it."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = ddp_gpt.Gpt(options, ddp_gpt.FusedBlock)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model._set_unshard_async_op(True)
    for block, following in zip(model.blocks, list(model.blocks)[1:]):
        block.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([block])
    return model, {"fused": True}


if __name__ == "__main__":
    ddp_gpt.main(__doc__, with_fsdp)
