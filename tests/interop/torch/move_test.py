"""Divided tensors that come to other ranks of a group."""

import itertools
import os
import unittest
from unittest import mock

import torch
import torch.distributed as dist

import ranks
import stretto_torch
from stretto_torch import Divided, Move, MovedTensor

SHAPE = (6, 5)
WHOLE = torch.arange(30.0).view(SHAPE)


def part(whole, division, rank):
    """The oracle."""
    if rank not in division.ranks:
        return None
    if division.boxes is not None:
        boxes = [whole[tuple(slice(b, e) for b, e in zip(begin, end))] for begin, end in division.boxes[division.ranks.index(rank)]]
        return boxes[0].clone() if len(boxes) == 1 else torch.cat([each.reshape(-1) for each in boxes])
    if division.dim is None:
        return whole.clone()
    mine = torch.tensor_split(whole, len(division.ranks), division.dim)[division.ranks.index(rank)]
    return mine.contiguous() if mine.numel() > 0 else None


def same(got, expected, what):
    assert (got is None) == (expected is None), what
    assert got is None or (got.shape == expected.shape and got.dtype == expected.dtype and torch.equal(got, expected)), f"{what}: {got}"


DIVISIONS = [Divided([0, 1], dim=0), Divided([2, 1, 0], dim=1), Divided([1, 2]), Divided([2], dim=0),
             Divided([0, 2], boxes=[[((0, 0), (2, 5)), ((4, 0), (6, 5))], [((2, 0), (4, 5))]])]


def all_pairs(rank):
    for (a, source), (b, target) in itertools.product(enumerate(DIVISIONS), repeat=2):
        for dtype in (torch.float32, torch.int64, torch.bfloat16):
            whole = WHOLE.to(dtype)
            got = stretto_torch.move(part(whole, source, rank), SHAPE, dtype, source, target)
            same(got, part(whole, target, rank), (a, b, dtype))


def runs_again(rank):
    source, target = DIVISIONS[0], DIVISIONS[1]
    move = Move([MovedTensor(SHAPE, torch.float32, source, target), MovedTensor(SHAPE, torch.float64, target, source)])
    sums = torch.ones(1)
    for factor in range(4):
        outputs = move.empty_outputs()
        inputs = [part(factor * WHOLE, source, rank), part(factor * WHOLE.double(), target, rank)]
        if inputs[0] is not None:  # not contiguous
            inputs[0] = torch.stack([inputs[0], inputs[0]], -1)[..., 0]
        work = move.start(inputs, outputs)
        dist.all_reduce(sums)  # behind it, in the order of the group's collectives
        work.wait()
        same(outputs[0], part(factor * WHOLE, target, rank), factor)
        same(outputs[1], part(factor * WHOLE.double(), source, rank), factor)
    assert sums.item() == 3 ** 4
    return move.bytes_sent()


def formats(rank):
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    source, target = Divided([0]), Divided([1, 2])
    got = {}
    for form in ("none", "int8", "int4"):
        move = Move([MovedTensor((64, 64), torch.float32, source, target, form)])
        got[form] = move([values if rank == 0 else None])[0]
    if rank == 0:
        return None
    assert torch.equal(got["none"], values)
    error = {form: (result - values).abs().max().item() for form, result in got.items()}
    assert 0 < error["int8"] < 0.03 < error["int4"] < 1, error
    return got["int8"].tolist()


def refusals(rank):
    def sentence(call):
        return str(ranks.error_of(call))

    rows, copies = Divided([0, 1], dim=0), Divided([2])
    move = Move([MovedTensor(SHAPE, torch.float32, rows, copies)])
    wrong = torch.zeros(7)
    said = sentence(lambda: move.start([wrong], [wrong]))
    assert "of a move has 7 elements of Float on rank" in said, said
    assert "got 2; give None" in sentence(lambda: move.start([None, None], [None]))
    assert "along dimension 2" in sentence(lambda: Move([MovedTensor(SHAPE, torch.float32, Divided([0], dim=2), copies)]))
    assert "does not travel in int8" in sentence(lambda: Move([MovedTensor(SHAPE, torch.int32, rows, copies, "int8")]))
    assert "names rank 3" in sentence(lambda: Move([MovedTensor(SHAPE, torch.float32, Divided([3]), copies)]))
    assert "give one of dim and boxes" in sentence(lambda: Divided([0], dim=-1))
    mine = part(WHOLE, rows, rank)
    two = Move([MovedTensor(SHAPE, torch.float32, rows, copies)] * 2)
    if rank == 2:
        expanded, shared = torch.zeros(1).expand(SHAPE), torch.zeros(SHAPE)
        assert "share memory; give a tensor whose elements do not" in sentence(lambda: move.start([None], [expanded]))
        assert "Outputs 0 and 1 of a move share memory" in sentence(lambda: two.start([None, None], [shared, shared.view(-1)]))
    same(two([mine, mine])[1], part(WHOLE, copies, rank), "the control: outputs of their own")
    same(move([mine])[0], part(WHOLE, copies, rank), "the group stays usable")


def sends_within_nodes(rank):
    move = Move([MovedTensor(SHAPE, torch.float32, Divided([0, 2]), Divided([3]))])
    same(move([WHOLE if rank in (0, 2) else None])[0], WHOLE if rank == 3 else None, rank)
    return move.bytes_sent()


class Moves(unittest.TestCase):
    def test_all_pairs_of_divisions(self):
        ranks.run(3, all_pairs)

    def test_a_move_runs_again_in_the_order_of_the_group(self):
        self.assertEqual(ranks.run(3, runs_again)[2], 8 * 12)  # two columns of six

    def test_copies_in_formats_have_equal_bits(self):
        _, one, other = ranks.run(3, formats)
        self.assertEqual(one, other)

    def test_copies_on_the_node_of_a_target_send(self):
        self.assertEqual(ranks.run(4, sends_within_nodes), [120, 0, 0, 0])  # the control: one node
        with mock.patch.dict(os.environ, STRETTO_RANKS_PER_NODE="2"):
            self.assertEqual(ranks.run(4, sends_within_nodes), [0, 0, 120, 0])

    def test_refusals(self):
        ranks.run(3, refusals)


if __name__ == "__main__":
    unittest.main()
