#!/usr/bin/python3
"""Measures tokens per second of PyTorch DistributedDataParallel over Gloo, training the GPT that stretto-train trains, each version in
its fastest form. gpt.py says which ranks it starts and what it prints."""
import torch
from torch import nn

import gpt


def with_ddp(options):
    # PyTorch 1.13 has no fused AdamW for the CPU, and its foreach form is the slower one there.
    is_new = int(torch.__version__.split(".")[0]) >= 2
    model = gpt.Gpt(options, gpt.FusedBlock if is_new else gpt.Block)
    adamw = {"fused": True} if is_new else {"foreach": False}
    return gpt.DataParallel(options, nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), **adamw)


if __name__ == "__main__":
    gpt.main(__doc__, with_ddp)
