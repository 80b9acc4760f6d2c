#!/usr/bin/python3
"""Tokens per second of PyTorch DistributedDataParallel over Gloo, training the GPT that stretto-train trains.

Debian's python3-torch runs it; it starts its own ranks on this host, one thread each, and rank 0 prints one JSON line.
The model is nanoGPT's shape: pre-LN, fused qkv, tanh GELU, learned positions, tied embedding, biases, no dropout.
"""

import argparse
import json
import math
import os
import socket
import statistics
import time

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.hidden
        self.heads = options.heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_c_proj = nn.Linear(4 * width, width)
        self.gelu = nn.GELU(approximate="tanh")
        # No buffer: DistributedDataParallel would send it from rank 0 in every step.
        self.later = torch.ones(options.seq_length, options.seq_length, dtype=torch.bool).triu(1)

    def attention(self, x):
        batch, sequence, width = x.shape
        size = width // self.heads
        query, key, value = (
            part.view(batch, sequence, self.heads, size).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2)
        )
        # Scaling the queries instead of the scores touches sequence / size times fewer elements.
        scores = (query * (1.0 / math.sqrt(size))) @ key.transpose(-2, -1)
        mixed = scores.masked_fill(self.later, -math.inf).softmax(-1) @ value
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, sequence, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp_c_proj(self.gelu(self.c_fc(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.wte = nn.Embedding(options.vocab, options.hidden)
        self.wpe = nn.Embedding(options.seq_length, options.hidden)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.ln_f = nn.LayerNorm(options.hidden)
        self.positions = torch.arange(options.seq_length)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.wte(inputs) + self.wpe(self.positions)
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def train(rank, options, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=options.nproc)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Gpt(options), gradient_as_bucket_view=True)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    # foreach is the fused form that exists for the CPU.
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), foreach=options.foreach)
    torch.manual_seed(1 + rank)
    shape = (options.batch, options.seq_length)
    seconds = []
    for step in range(options.warmup + options.steps):
        inputs = torch.randint(options.vocab, shape)
        targets = torch.randint(options.vocab, shape)
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = model(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if step >= options.warmup:
            seconds.append(time.perf_counter() - start)
    if rank == 0:
        median = statistics.median(seconds)
        config = torch.__config__.show()
        blas = [word for word in config.replace(",", " ").split() if word.startswith(("BLAS_INFO", "USE_MKLDNN="))]
        print(
            json.dumps(
                {
                    "tokens_per_s": round(options.nproc * options.batch * options.seq_length / median, 1),
                    "step_ms": round(1e3 * median, 2),
                    "steps": len(seconds),
                    "torch": torch.__version__,
                    "blas": " ".join(blas),
                }
            ),
            flush=True,
        )
    torch.distributed.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(layers=6, hidden=384, heads=6, seq_length=256, vocab=65, batch=6, steps=20, warmup=5).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--foreach", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    # Before the ranks start: their BLAS reads these when it is loaded.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    torch.multiprocessing.spawn(train, (options, free_port()), nprocs=options.nproc)


if __name__ == "__main__":
    main()
