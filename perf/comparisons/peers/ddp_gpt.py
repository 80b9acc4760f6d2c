#!/usr/bin/python3
"""Measures tokens per second of PyTorch DistributedDataParallel over Gloo, training the GPT that stretto-train trains. Debian's
python3-torch runs it; gpt.py says which ranks it starts and what it prints."""
from torch import nn

import gpt


def with_ddp(options):
    # This version has no fused AdamW for the CPU, and its foreach form is the slower one there.
    return gpt.DataParallel(options, nn.parallel.DistributedDataParallel(gpt.Gpt(options), gradient_as_bucket_view=True), foreach=False)


if __name__ == "__main__":
    gpt.main(__doc__, with_ddp)
