#!/usr/bin/env python3
"""Prints the table of tests/layers/muon_test.cpp: weights after three steps of torch.optim.Muon (PyTorch 2.9 or later), whose products,
in bf16 there, are computed in float64. Weights and gradients follow the formulas below, which the test repeats."""

from unittest import mock

import torch


def weight(i):
    return (5 * i % 13 - 6) / 8


def gradient(i, step):
    return (7 * i + 3 * step * step) % 11 - 5 + 0.25 * (i % 3)


def main():
    for scale, name in (("original", "keller"), ("match_rms_adamw", "moonlight")):
        for rows, columns in ((4, 6), (6, 4)):
            count = rows * columns
            matrix = torch.tensor([weight(i) for i in range(count)], dtype=torch.float64).reshape(rows, columns).requires_grad_()
            optimizer = torch.optim.Muon([matrix], lr=0.1, weight_decay=0.5, momentum=0.9, adjust_lr_fn=scale)
            for step in range(3):
                matrix.grad = torch.tensor([gradient(i, step) for i in range(count)], dtype=torch.float64).reshape(rows, columns)
                with mock.patch.object(torch, "bfloat16", torch.float64):
                    optimizer.step()
            numbers = ", ".join(f"{matrix.flatten()[i].item():.12f}" for i in (0, 5, 13, 23))
            print(f"{{MuonScale::{name}, {rows}, {columns}, {{{numbers}}}}},")


if __name__ == "__main__":
    main()
