"""Communication hooks of DistributedDataParallel in which gradients travel with fewer bits than they have.

    model = DistributedDataParallel(net)  # over a group of the backend "stretto"
    model.register_comm_hook(None, stretto_torch.hooks.quantized(bits=8))

The part of a gradient that quantization leaves out is added to the next gradient (error feedback, Seide et al. 2014). The
hook owns this state, so each model must have a hook of its own. Checkpoints do not contain it: resumed training starts
without it.
"""

import torch
import torch.distributed as dist

from . import _C

_FORMATS = {8: "int8", 4: "int4"}


def average(process_group=None):
    """Averages gradients as they are, as DDP does without a hook."""
    return _hook(None, process_group, 0)


def quantized(bits=8, process_group=None, plain_steps=0):
    """Averages by block quantization with 8 or 4 bits an element: 1.02 or 0.53 bytes with the scales.

    process_group: the model's; None: the default group. The first plain_steps steps send gradients unquantized.
    """
    if bits not in _FORMATS:
        raise ValueError(f"Gradients can travel with 8 or 4 bits an element, not with {bits}; see also onebit().")
    return _hook(_FORMATS[bits], process_group, plain_steps)


def onebit(process_group=None, plain_steps=0):
    """Averages with one bit an element (Tang et al. 2021): 0.13 bytes with the scales.

    Adam needs stable second moments first: set plain_steps, as 1-bit Adam does.
    """
    return _hook("onebit", process_group, plain_steps)


class _LeftOut:
    """The part of each bucket that a hook has left out so far."""

    def __init__(self):
        self._parameters = {}  # by bucket
        self._errors = _C.ErrorFeedback()

    def of(self, bucket):
        # DDP forms its buckets anew after its first step. The errors of an old bucket do not fit a new one.
        parameters = tuple(parameter.data_ptr() for parameter in bucket.parameters())
        if self._parameters.setdefault(bucket.index(), parameters) != parameters:
            self._parameters = {bucket.index(): parameters}
            self._errors = _C.ErrorFeedback()
        return self._errors


def _hook(form, process_group, plain_steps):
    from . import backend_of

    left_out = _LeftOut()
    steps = 0

    def average(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal steps
        backend = backend_of(process_group)
        plain = form is None or steps < plain_steps
        if bucket.is_last():
            steps += 1
        if plain:
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.AVG
            work = backend.allreduce([bucket.buffer()], options)
        else:
            name = f"bucket {bucket.index()}"
            work = backend.quantized_average(bucket.buffer(), form, errors=left_out.of(bucket), name=name)
        return work.get_future().then(lambda done: done.value()[0])

    average.__name__ = average.__qualname__ = f"stretto_{form or 'average'}"  # the name that DDP's log shows
    return average
