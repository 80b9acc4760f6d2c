"""Communication hooks of DistributedDataParallel in which gradients travel with fewer bits than they have.

    model = DistributedDataParallel(net)  # over a group of the backend "stretto"
    model.register_comm_hook(None, stretto_torch.hooks.quantized(bits=8))

What quantizing leaves out of a gradient is added to the next one (error feedback, Seide et al. 2014). That state belongs to
a hook: give each model its own. It is not part of checkpoints: training that is resumed begins without.
"""

import torch

from . import _C

_FORMATS = {8: "int8", 4: "int4"}


def quantized(bits=8, process_group=None, plain_steps=0):
    """Averages by block quantization with 8 or 4 bits an element: 1.02 or 0.53 bytes with the scales.

    process_group: that of the model; none: the default one. In the first plain_steps steps gradients go as they are.
    """
    if bits not in _FORMATS:
        raise ValueError(f"Gradients can travel with 8 or 4 bits an element, not with {bits}; see also onebit().")
    return _Hook(_FORMATS[bits], process_group, plain_steps)


def onebit(process_group=None, plain_steps=0):
    """Averages with one bit an element (Tang et al. 2021): 0.13 bytes with the scales.

    Adam wants its second moments settled first: give it plain_steps, as 1-bit Adam does.
    """
    return _Hook("onebit", process_group, plain_steps)


class _Hook:
    # DDP calls hook(state, bucket), and asks a hook for its name.
    __name__ = "stretto_quantized"
    __qualname__ = "stretto_quantized"

    def __init__(self, form, process_group, plain_steps):
        self._format = form
        self._group = process_group
        self._plain_steps = plain_steps
        self._steps = 0
        self._buckets = {}  # the parameters in each bucket
        self._errors = _C.ErrorFeedback()

    def __call__(self, state, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        from . import backend_of

        backend = backend_of(self._group)
        plain = self._steps < self._plain_steps
        if bucket.is_last():
            self._steps += 1
        if plain:
            options = torch.distributed.AllreduceOptions()
            options.reduceOp = torch.distributed.ReduceOp.AVG
            work = backend.allreduce([bucket.buffer()], options)
        else:
            work = backend.quantized_average(
                bucket.buffer(), self._format, errors=self._errors_of(bucket), name=f"bucket {bucket.index()}"
            )
        return work.get_future().then(lambda done: done.value()[0])

    def _errors_of(self, bucket):
        # After its first step DDP forms its buckets anew. What was left out of one is nothing to another.
        parameters = tuple(parameter.data_ptr() for parameter in bucket.parameters())
        if self._buckets.setdefault(bucket.index(), parameters) != parameters:
            self._buckets = {bucket.index(): parameters}
            self._errors = _C.ErrorFeedback()
        return self._errors
