#!/usr/bin/env python3
"""Writes gpt2_reference.safetensors: a small GPT-2 with one batch and what PyTorch computes from them in float64.

The model: 2 layers, 32 wide, 4 heads, 16 positions, a vocabulary of 65; pre-LN, tanh GELU, learned positions, biases in
every linear layer and layer norm, and an output layer tied to wte. The file holds, as F32 where nothing else is said:

  wte.weight, h.0.attn.c_attn.weight, ...   the weights under Hugging Face's GPT-2 names without "transformer.".
                                            Linear weights are [out, in], as torch.nn.Linear keeps them; Hugging Face's
                                            own files hold them [in, out].
  gradient.<name>                           the gradient of the loss with respect to each of them
  inputs, targets                           I32 [4, 16]
  logits                                    [4, 16, 65]
  loss                                      the mean cross entropy over all 64 tokens
  adamw_losses                              F64 [11]: the loss before each of ten steps of AdamW on that batch and after
                                            the last: lr 1e-3, betas 0.9 and 0.95, epsilon 1e-8, weight decay 0.1 for
                                            parameters of two or more dimensions and 0 for others, no clipping

Everything is drawn from a fixed seed; running this again writes the same file.
"""

import json
import math
import pathlib
import struct

import torch
from torch.nn import functional

LAYERS, WIDTH, HEADS, POSITIONS, VOCABULARY, BATCH = 2, 32, 4, 16, 65, 4


def make_weights():
    generator = torch.Generator().manual_seed(1234)

    # Rounded to float32, so that the file holds exactly what was computed with.
    def normal(*shape, mean=0.0, deviation=0.02):
        drawn = mean + deviation * torch.randn(*shape, generator=generator, dtype=torch.float64)
        return drawn.float().double().requires_grad_()

    weights = {"wte.weight": normal(VOCABULARY, WIDTH), "wpe.weight": normal(POSITIONS, WIDTH)}

    def layer_norm(name):
        weights[f"{name}.weight"] = normal(WIDTH, mean=1.0, deviation=0.1)
        weights[f"{name}.bias"] = normal(WIDTH, deviation=0.1)

    def linear(name, outputs, inputs):
        weights[f"{name}.weight"] = normal(outputs, inputs)
        weights[f"{name}.bias"] = normal(outputs)

    for layer in range(LAYERS):
        layer_norm(f"h.{layer}.ln_1")
        linear(f"h.{layer}.attn.c_attn", 3 * WIDTH, WIDTH)
        linear(f"h.{layer}.attn.c_proj", WIDTH, WIDTH)
        layer_norm(f"h.{layer}.ln_2")
        linear(f"h.{layer}.mlp.c_fc", 4 * WIDTH, WIDTH)
        linear(f"h.{layer}.mlp.c_proj", WIDTH, 4 * WIDTH)
    layer_norm("ln_f")
    inputs = torch.randint(VOCABULARY, (BATCH, POSITIONS), generator=generator)
    targets = torch.randint(VOCABULARY, (BATCH, POSITIONS), generator=generator)
    return weights, inputs, targets


def logits_of(weights, inputs):
    def layer_norm(x, name):
        return functional.layer_norm(x, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-5)

    def linear(x, name):
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def gelu(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def attention(x, name):
        batch, sequence, width = x.shape
        parts = linear(x, f"{name}.c_attn").view(batch, sequence, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // HEADS)
        later = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ value
        return linear(mixed.transpose(1, 2).reshape(batch, sequence, width), f"{name}.c_proj")

    x = weights["wte.weight"][inputs] + weights["wpe.weight"][: inputs.shape[1]]
    for layer in range(LAYERS):
        name = f"h.{layer}"
        x = x + attention(layer_norm(x, f"{name}.ln_1"), f"{name}.attn")
        x = x + linear(gelu(linear(layer_norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc")), f"{name}.mlp.c_proj")
    return layer_norm(x, "ln_f") @ weights["wte.weight"].T


def loss_of(logits, targets):
    return functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def adamw_losses(weights, inputs, targets):
    weights = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    decayed = [value for value in weights.values() if value.dim() >= 2]
    others = [value for value in weights.values() if value.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(10):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(logits_of(weights, inputs), targets)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return torch.tensor(losses + [loss_of(logits_of(weights, inputs), targets).item()], dtype=torch.float64)


def write_safetensors(path, tensors):
    """8 bytes of header length, the header as JSON padded with spaces to whole 8 bytes, then the data without gaps."""
    names = {torch.float32: "F32", torch.float64: "F64", torch.int32: "I32"}
    header, blocks, offset = {}, [], 0
    for name, tensor in tensors.items():
        block = tensor.contiguous().numpy().tobytes()
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(block)],
        }
        blocks.append(block)
        offset += len(block)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blocks))


def main():
    weights, inputs, targets = make_weights()
    logits = logits_of(weights, inputs)
    loss = loss_of(logits, targets)
    loss.backward()
    # 8-byte elements first, so that every tensor lies at a multiple of its element size.
    tensors = {"adamw_losses": adamw_losses(weights, inputs, targets)}
    tensors.update({name: value.detach().float() for name, value in weights.items()})
    tensors.update({f"gradient.{name}": value.grad.float() for name, value in weights.items()})
    tensors.update(inputs=inputs.int(), targets=targets.int(), logits=logits.detach().float(), loss=loss.detach().float())
    write_safetensors(pathlib.Path(__file__).with_name("gpt2_reference.safetensors"), tensors)


if __name__ == "__main__":
    torch.set_num_threads(1)  # one order of addition
    main()
