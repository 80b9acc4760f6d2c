"""Tests of what PyTorch builds on groups: a body runs on the ranks of a job of Gloo and on those of a job of this backend, and what
the ranks return must be the same."""

import unittest

import torch

import ranks

RECENT = int(torch.__version__.split(".")[0]) >= 2
if RECENT:  # here once, instead of in every rank
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.nn.functional
    import torch.distributed.pipelining.schedules
    import torch.distributed.tensor.parallel


class FailsOnGloo(AssertionError):
    """The body fails on Gloo, too: nothing is known about this backend."""


def same(ours, theirs, exactly, where="the result"):
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), f"{where}: {list(ours)} is not {list(theirs)}"
        for key, value in theirs.items():
            same(ours[key], value, exactly, f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), f"{where}: {ours} is not {theirs}"
        for i, (one, other) in enumerate(zip(ours, theirs)):
            same(one, other, exactly, f"{where}[{i}]")
    elif isinstance(theirs, (torch.Tensor, float)):
        one, other = torch.as_tensor(ours), torch.as_tensor(theirs)
        assert one.dtype == other.dtype and one.shape == other.shape, f"{where}: {one} is not {other}"
        limit = 0 if exactly or not one.is_floating_point() else 1e-4
        assert torch.allclose(one, other, rtol=limit, atol=limit, equal_nan=True), f"{where}: {one} is not {other}"
    else:
        assert ours == theirs, f"{where}: {ours} is not {theirs}"


@unittest.skipUnless(RECENT, f"PyTorch {torch.__version__} has none of it")
class BesideGloo(unittest.TestCase):
    suite = None  # the name under which `./dev torch2 --suite` counts these tests

    def beside(self, body, sizes=(2, 4)):
        """body(rank) returns numbers, tensors, and collections of these."""
        for size in sizes:
            try:
                theirs = ranks.run(size, body, backend="gloo")
            except AssertionError as error:
                raise FailsOnGloo(str(error)) from None
            for rank, (mine, other) in enumerate(zip(ranks.run(size, body), theirs)):
                same(mine, other, size == 2, f"rank {rank} of {size}")  # a sum of two has one order
