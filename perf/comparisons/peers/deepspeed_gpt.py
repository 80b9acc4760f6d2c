"""Measures tokens per second of DeepSpeed's ZeRO stage 3 over Gloo on processors, training the GPT of gpt.py, which says which ranks it
starts and what it prints. With --directory, values and optimizer state lie in files there (ZeRO-Infinity). It needs PyTorch 2 and
DeepSpeed, whose operators are compiled at their first use."""
import os

os.environ["DS_ACCELERATOR"] = "cpu"  # which it reads when it is imported

import deepspeed
import torch

import gpt


class Engine(gpt.DataParallel):
    """DeepSpeed's engine, which is its own optimizer."""

    about = {"deepspeed": deepspeed.__version__}

    def __init__(self, options):
        super().__init__(options, gpt.Gpt(options, gpt.FusedBlock))

    def optimizer(self, groups, **how):
        zero = {"stage": 3}
        if self.options.directory:
            in_file = {"device": "nvme", "nvme_path": self.options.directory, "pin_memory": False}
            largest = max(parameter.numel() for parameter in self.parameters)
            # Reading ahead ends in an assertion of its swapper ("already assigned swap buffer"), and so do fewer buffers than values.
            zero |= {"stage3_prefetch_bucket_size": 0, "offload_optimizer": in_file, "offload_param": {**in_file, "buffer_size": largest, "buffer_count": len(self.parameters), "max_in_cpu": 0}}
        config = {"train_micro_batch_size_per_gpu": self.options.batch, "gradient_clipping": 1.0, "zero_optimization": zero,
                  "aio": {"block_size": 1 << 20, "queue_depth": 8}, "optimizer": {"type": "AdamW", "params": how}}
        os.environ["LOCAL_RANK"] = str(torch.distributed.get_rank())
        self.engine, *_ = deepspeed.initialize(model=self.model, model_parameters=groups, config=config)
        return self

    def compute_gradients(self, inputs, targets):
        self.engine.backward(self.engine(inputs, targets))

    def step(self):
        self.engine.step()

    def zero_grad(self, set_to_none):
        """step() has done it."""


if __name__ == "__main__":
    gpt.main(__doc__, Engine, directory="")
