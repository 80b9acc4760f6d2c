"""The GPT that stretto-train trains, in PyTorch 1.13 or 2, and the loop in which ranks on processors train it over Gloo.

Each program beside this file says how the ranks divide the work, and calls main. It starts its own ranks on this host, one thread
each, and rank 0 prints one JSON line. With --nproc 0 it is one rank of a job that a launcher started (RANK, WORLD_SIZE, MASTER_ADDR,
MASTER_PORT). The model is nanoGPT's shape: pre-LN, fused qkv, tanh GELU, learned positions, tied embedding, biases, no dropout.
"""

import argparse
import json
import math
import os
import socket
import statistics
import sys
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
        self.mask = torch.full((options.seq_length, options.seq_length), -math.inf).triu(1)

    def attention(self, x):
        batch, sequence, width = x.shape
        size = width // self.heads
        query, key, value = (
            part.view(batch, sequence, self.heads, size).transpose(1, 2).reshape(batch * self.heads, sequence, size)
            for part in self.c_attn(x).split(width, dim=2)
        )
        # nanoGPT's masked softmax, with scaling and mask inside the product: a step is 5% faster than with masked_fill.
        scores = torch.baddbmm(self.mask, query, key.transpose(1, 2), alpha=1.0 / math.sqrt(size))
        mixed = torch.bmm(scores.softmax(-1), value).view(batch, self.heads, sequence, size)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, sequence, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp_c_proj(self.gelu(self.c_fc(self.ln_2(x))))


class FusedBlock(Block):
    """With PyTorch 2's own attention."""

    def attention(self, x):
        batch, sequence, width = x.shape
        query, key, value = (part.view(batch, sequence, self.heads, width // self.heads).transpose(1, 2)
                             for part in self.c_attn(x).split(width, dim=2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, sequence, width))


class Gpt(nn.Module):
    def __init__(self, options, block=Block):
        super().__init__()
        self.wte = nn.Embedding(options.vocab, options.hidden)
        self.wpe = nn.Embedding(options.seq_length, options.hidden)
        self.blocks = nn.ModuleList(block(options) for _ in range(options.layers))
        self.ln_f = nn.LayerNorm(options.hidden)
        self.positions = torch.arange(options.seq_length)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def embedded(self, inputs):
        return self.wte(inputs) + self.wpe(self.positions)

    def logits(self, x):
        return functional.linear(self.ln_f(x), self.wte.weight)

    def forward(self, inputs, targets):
        x = self.embedded(inputs)
        for block in self.blocks:
            x = block(x)
        return loss_of(self.logits(x), targets)


def loss_of(logits, targets):
    return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def autocast(options):
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16")


class DataParallel:
    """Ranks that each compute all of a model, for their own sequences. A program's own division has the same members."""

    about = {}  # what the JSON line says besides

    def __init__(self, options, model, **adamw):
        self.options, self.model = options, model
        self.parameters = list(model.parameters())
        self.adamw = adamw  # the form of AdamW that is fastest with the model
        self.rank_sequences = options.batch  # that a rank draws for a step
        self.step_sequences = options.batch * torch.distributed.get_world_size()

    def optimizer(self, groups, **how):
        return torch.optim.AdamW(groups, **how, **self.adamw)

    def compute_gradients(self, inputs, targets):
        """Of one step; clipped."""
        with autocast(self.options):
            loss = self.model(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)


def blas():
    """The BLAS in PyTorch's build and, since Debian's "generic" is no answer, the BLAS libraries that are loaded."""
    config = torch.__config__.show().replace(",", " ").split()
    built = [word for word in config if word.startswith(("BLAS_INFO=", "USE_MKLDNN="))]
    with open("/proc/self/maps") as maps:
        files = {os.path.basename(line.split()[-1]) for line in maps if "/" in line}
    return " ".join(built + sorted(name for name in files if "blas" in name or "mkl" in name or "dnnl" in name))


def sent_through(interface):
    """Bytes that have left this host through a network interface."""
    with open(f"/sys/class/net/{interface}/statistics/tx_bytes") as file:
        return int(file.read())


def train_on_this_host(rank, options, port, divide):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    train(rank, options.nproc, options, divide)


def train(rank, size, options, divide):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(0)
    divided = divide(options)
    groups = [
        {"params": [p for p in divided.parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in divided.parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = divided.optimizer(groups, lr=3e-4, betas=(0.9, 0.95))
    torch.manual_seed(1 + rank)
    shape = (divided.rank_sequences, options.seq_length)
    seconds = []
    for step in range(options.warmup + options.steps):
        if options.interface and step == options.warmup:
            sent = sent_through(options.interface)
        inputs = torch.randint(options.vocab, shape)
        targets = torch.randint(options.vocab, shape)
        start = time.perf_counter()
        divided.compute_gradients(inputs, targets)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= options.warmup:
            seconds.append(time.perf_counter() - start)
    if rank == 0:
        median = statistics.median(seconds)
        result = {
            "tokens_per_s": round(divided.step_sequences * options.seq_length / median, 1),
            "step_ms": round(1e3 * median, 2),
            "steps": len(seconds),
            "torch": torch.__version__,
            "blas": blas(),
            **divided.about,
        }
        if options.interface:
            result["sent_per_step"] = (sent_through(options.interface) - sent) // options.steps
        print(json.dumps(result), flush=True)
    torch.distributed.destroy_process_group()


def fastest_environment():
    """Variables that the ranks' libraries read when they are loaded; each was measured to make training faster, or no slower."""
    result = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        # Freed memory is reused instead of returned, and lies on huge pages.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
        "MALLOC_TOP_PAD_": str(1 << 28),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
    with open("/proc/cpuinfo") as cpuinfo:
        flags = set(next((line for line in cpuinfo if line.startswith("flags")), "").split())
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"} <= flags:
        result["ATEN_CPU_CAPABILITY"] = "avx512"  # PyTorch itself stops at avx2
    return result


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(description, divide, **sizes):
    """divide(options) makes what has the members of DataParallel; sizes are further flags with their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = dict(layers=6, hidden=384, heads=6, seq_length=256, vocab=65, batch=6, steps=20, warmup=5, **sizes)
    for name, value in sizes.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--interface", help="network interface whose sent bytes are counted")
    parser.add_argument("--nproc", type=int, default=2, help="ranks to start; 0: a launcher has started this one")
    options = parser.parse_args()
    wanted = fastest_environment()
    prepared = all(os.environ.get(name) == value for name, value in wanted.items())
    os.environ.update(wanted)
    if options.nproc > 0:
        torch.multiprocessing.spawn(train_on_this_host, (options, free_port(), divide), nprocs=options.nproc)
    elif not prepared:
        os.execv(sys.executable, [sys.executable, *sys.argv])  # its libraries have been loaded without these variables
    else:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), options, divide)
