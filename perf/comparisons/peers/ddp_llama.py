"""Measures tokens per second of PyTorch 2's DistributedDataParallel over Gloo, training the Llama that stretto-train trains: eager, with
PyTorch's own attention and RMS norm, and fused AdamW. gpt.py says which ranks it starts and what it prints."""
import torch
from torch import nn
from torch.nn import functional

import gpt


class Block(nn.Module):
    def __init__(self, options):
        super().__init__()
        width, size = options.hidden, options.hidden // options.heads
        self.heads, self.kv_heads, self.size = options.heads, options.kv_heads, size
        self.norm_1, self.norm_2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q = nn.Linear(width, options.heads * size, bias=False)
        self.k = nn.Linear(width, options.kv_heads * size, bias=False)
        self.v = nn.Linear(width, options.kv_heads * size, bias=False)
        self.o = nn.Linear(options.heads * size, width, bias=False)
        self.gate, self.up = nn.Linear(width, options.mlp, bias=False), nn.Linear(width, options.mlp, bias=False)
        self.down = nn.Linear(options.mlp, width, bias=False)
        angles = torch.outer(torch.arange(options.seq_length).float(), 1e5 ** (-torch.arange(0, size, 2).float() / size))
        # No buffers: DistributedDataParallel would send them from rank 0 in every step.
        self.cos, self.sin = torch.cat((angles, angles), 1).cos(), torch.cat((angles, angles), 1).sin()

    def turned(self, heads):
        first, second = heads.chunk(2, -1)
        return heads * self.cos.to(heads.dtype) + torch.cat((-second, first), -1) * self.sin.to(heads.dtype)

    def forward(self, x):
        batch, sequence, _ = x.shape
        normed = self.norm_1(x)
        q, k, v = (product(normed).view(batch, sequence, -1, self.size).transpose(1, 2) for product in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        normed = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.table = nn.Embedding(options.vocab, options.hidden)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.hidden, 1e-5)
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.table(inputs)
        for block in self.blocks:
            x = block(x)
        return gpt.loss_of(functional.linear(self.norm(x), self.table.weight), targets)


def with_ddp(options):
    return gpt.DataParallel(options, nn.parallel.DistributedDataParallel(Llama(options), gradient_as_bucket_view=True), fused=True)


if __name__ == "__main__":
    gpt.main(__doc__, with_ddp, kv_heads=2, mlp=1024)
