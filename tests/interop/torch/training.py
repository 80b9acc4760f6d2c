"""A small model, its batches, and the loop that trains it."""

import torch

STEPS = 8


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU(),
                               torch.nn.Linear(64, 3))


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(16, 20, generator=generator)
    return inputs, inputs[:, :3].sin() + inputs[:, 3:6]


def adam(parameters, group=None):
    return torch.optim.AdamW(parameters, lr=1e-2)


def losses_of(net, optimizer, rank, steps=STEPS):
    """Of a rank's steps. rank: whose batches it takes."""
    losses = []
    for step in range(steps):
        inputs, targets = batch(step, rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
