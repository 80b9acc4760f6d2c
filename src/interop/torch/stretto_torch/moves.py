"""Tensors that lie divided over some ranks of a group come to other ranks, divided otherwise.

    rows, copies = stretto_torch.Divided([0, 1], dim=0), stretto_torch.Divided([2, 3])
    weights = stretto_torch.move(mine, (4096, 1024), torch.bfloat16, rows, copies)    # every rank of the group

A Move is planned once and run as often as wanted, with a list of tensors:

    update = stretto_torch.Move([stretto_torch.MovedTensor((4096, 1024), torch.bfloat16, rows, copies)])
    work = update.start([mine], [theirs])     # None where a rank has no part
    work.wait()

Each rank receives what it lacks, once; what several ranks lack leaves the source ranks once (docs/moves.md).
"""

import collections

import torch
import torch.distributed as dist

from . import _C

_REPLICATED, _BY_BOXES = -1, -2


class Divided:
    """How a tensor lies over ranks of a group.

    dim: each rank has a balanced part along this dimension, of which the larger ones come first; None: the whole. boxes:
    instead, for each rank a list of boxes (begin, end), two indices each; a rank with several boxes has a flat tensor of them, one
    behind the other. Boxes of two source ranks must be the same or disjoint.
    """

    def __init__(self, ranks, dim=None, boxes=None):
        if dim is not None and (boxes is not None or dim < 0):
            raise ValueError(f"A division along dimension {dim} has no boxes, and no negative dimension; give one of dim and boxes.")
        self.ranks = list(ranks)
        self.dim = dim
        self.boxes = boxes

    def _given(self):
        if self.boxes is None:
            return (self.ranks, _REPLICATED if self.dim is None else self.dim, [])
        return (self.ranks, _BY_BOXES, [[(list(begin), list(end)) for begin, end in of_rank] for of_rank in self.boxes])


# format: of messages, of float, half and bfloat16 tensors: "int8", "int4", "fp8", "onebit".
MovedTensor = collections.namedtuple("MovedTensor", "shape dtype source target format", defaults=["none"])


class Move:
    """A planned move of MovedTensors over the ranks of a group (None: the default group), which must all make it alike.

    max_buffer_bytes bounds the messages that a rank holds at a time, without quantized records that it is to pass on: at least 65536, or 0
    for no bound.
    """

    def __init__(self, tensors, group=None, max_buffer_bytes=0):
        from . import backend_of

        self._group = group
        self._tensors = [MovedTensor(*each) for each in tensors]
        given = [(list(each.shape), torch.empty(0, dtype=each.dtype, device="cpu"), each.source._given(), each.target._given(), each.format)
                 for each in self._tensors]
        self._move = _C.GroupMove(dist.get_rank(group), backend_of(group).nodes(), given, max_buffer_bytes)

    def __call__(self, inputs):
        """Returns this rank's new tensors, in a list; None where it has none. Collective."""
        outputs = self.empty_outputs()
        self.start(inputs, outputs).wait()
        return outputs

    def empty_outputs(self):
        """Tensors for what this rank gets."""
        outputs = []
        for number, tensor in enumerate(self._tensors):
            extents = [[e - b for b, e in zip(begin, end)] for begin, end in self._move.boxes(number, True)]
            elements = sum(torch.Size(each).numel() for each in extents)
            shape = extents[0] if len(extents) == 1 else [elements]
            outputs.append(torch.empty(shape, dtype=tensor.dtype, device="cpu") if elements > 0 else None)
        return outputs

    def start(self, inputs, outputs):
        """Starts the move, as a collective of the group, and returns its work. The tensors must be left alone until it is done."""

        def present(tensors):
            if len(tensors) != len(self._tensors):
                raise ValueError(f"A move of {len(self._tensors)} tensors got {len(tensors)}; give None where this rank has no part.")
            return [torch.empty(0, dtype=moved.dtype, device="cpu") if tensor is None else tensor for tensor, moved in zip(tensors, self._tensors)]

        from . import backend_of

        return backend_of(self._group).move(self._move, present(inputs), present(outputs))

    def bytes_sent(self):
        """The bytes of this rank's messages in a run."""
        return self._move.bytes_sent()


def move(tensor, shape, dtype, source, target, group=None, format="none"):
    """Moves one tensor, once. Returns this rank's new part, or None. Collective."""
    return Move([MovedTensor(shape, dtype, source, target, format)], group)([tensor])[0]
