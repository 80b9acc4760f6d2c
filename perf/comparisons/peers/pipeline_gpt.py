"""Measures tokens per second of torch.distributed.pipelining's Schedule1F1B over Gloo on processors, training the GPT of gpt.py,
which says which ranks it starts and what it prints. Each rank is a stage with its share of the blocks; --batch is the sequences of a
microbatch. It needs PyTorch 2.

The table of tokens is tied: the first and the last stage hold a copy each and sum their gradients, and the norm of the gradients,
which is that of the whole model, counts it once. Attention and AdamW are those of fsdp_gpt.py.
"""
import sys

import torch
from torch import distributed, nn
from torch.distributed import pipelining

import gpt


class Stage(gpt.Gpt):
    """What one stage computes of the model. All ranks draw all initial values, so that the parts are those of one model."""

    def __init__(self, options, stage, stages):
        super().__init__(options, gpt.FusedBlock)
        self.options = options
        self.first, self.last = stage == 0, stage == stages - 1
        each = options.layers // stages
        self.blocks = self.blocks[stage * each:(stage + 1) * each]
        if not self.first:
            del self.wpe
        if not self.last:
            del self.ln_f
        if not self.first and not self.last:
            del self.wte

    def forward(self, x):
        with gpt.autocast(self.options):
            x = self.embedded(x) if self.first else x
            for block in self.blocks:
                x = block(x)
            return self.logits(x) if self.last else x


class Pipeline(gpt.DataParallel):
    """The stages. Every rank draws a step's sequences; the first stage uses its inputs, and the
    last its targets."""

    def __init__(self, options):
        stage, stages = distributed.get_rank(), distributed.get_world_size()
        if options.layers % stages != 0:
            sys.exit(f"error: {options.layers} layers do not divide into {stages} stages; choose a multiple.")
        self.model = Stage(options, stage, stages)
        self.parameters = list(self.model.parameters())
        self.adamw = {"fused": True}
        self.rank_sequences = self.step_sequences = options.batch * options.microbatches
        self.ends = distributed.new_group(sorted({0, stages - 1}))

        def loss_of(logits, targets):
            with gpt.autocast(options):
                return gpt.loss_of(logits, targets)

        part = pipelining.PipelineStage(self.model, stage, stages, torch.device("cpu"))
        self.schedule = pipelining.Schedule1F1B(part, options.microbatches, loss_fn=loss_of)

    def compute_gradients(self, inputs, targets):
        """Of one step; clipped."""
        first, last = self.model.first, self.model.last
        self.schedule.step(*([inputs] if first else []), target=targets if last else None, return_outputs=False)
        if first or last:
            distributed.all_reduce(self.model.wte.weight.grad, group=self.ends)
        counted = [p.grad for p in self.parameters if first or not last or p is not self.model.wte.weight]
        squares = nn.utils.get_total_norm(counted).square()
        distributed.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(self.parameters, 1.0, squares.sqrt())


if __name__ == "__main__":
    gpt.main(__doc__, Pipeline, microbatches=8)
