"""1-bit Adam (Tang et al. 2021) for DistributedDataParallel: Adam first; later its momentum travels, in one bit an element.

    model = DistributedDataParallel(net)  # over a group of the backend "stretto"
    optimizer = stretto_torch.OneBitAdam(model.parameters(), lr=1e-3, freeze_step=200)
    model.register_comm_hook(None, optimizer.hook())
"""

import math

import torch
import torch.distributed as dist

from . import hooks


class OneBitAdam(torch.optim.Optimizer):
    """AdamW whose second moment is frozen after `freeze_step` steps.

    Up to there, the hook averages gradients, and step() is torch.optim.AdamW's. From then on the hook makes the momentum
    of each gradient, averages it in one bit an element with error feedback at both ends, and step() takes it from .grad:

        m = mean over ranks of (beta1 m + (1 - beta1) g)
        w = w - lr ((m / c1) / (sqrt(v / c2) + eps) + weight_decay w)

    with the bias corrections c1 and c2 of the freeze. Elements whose v is 0 at the freeze stay as they are but for weight decay.
    Others move by at most what AdamW can reach, (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2)) lr.

    One hook, of the model whose parameters these are, and one backward for each step (no no_sync()). All parameters must
    get a gradient. After the freeze, clipping .grad would clip the momentum. state_dict() has m and v, not what the hook has yet to feed back.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, freeze_step=1):
        if freeze_step < 1:
            raise ValueError(f"OneBitAdam needs steps of Adam before it freezes the variance; give a freeze_step from 1 on, not {freeze_step}.")
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        self.freeze_step = freeze_step
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = 0
                state["m"] = torch.zeros_like(parameter)
                state["v"] = torch.zeros_like(parameter)

    def is_frozen(self, parameter):
        return self.state[parameter]["step"] >= self.freeze_step

    def hook(self, process_group=None):
        """The communication hook of the model. It owns what quantization has left out."""
        beta1 = {parameter: group["betas"][0] for group in self.param_groups for parameter in group["params"]}
        plain = hooks.average(process_group)
        rounded = hooks.onebit(process_group) if dist.get_world_size(process_group) > 1 else plain

        def exchange(state, bucket):
            parameters = bucket.parameters()
            if not self.is_frozen(parameters[0]):
                return plain(state, bucket)
            for parameter, gradient in zip(parameters, bucket.gradients()):
                gradient.mul_(1 - beta1[parameter]).add_(self.state[parameter]["m"], alpha=beta1[parameter])
            return rounded(state, bucket)

        exchange.__name__ = exchange.__qualname__ = "stretto_onebit_adam"
        return exchange

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    raise RuntimeError("OneBitAdam got a parameter without a gradient, whose momentum no rank has averaged.")
                self._update(parameter, group)
        return loss

    def _update(self, parameter, group):
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        frozen = self.is_frozen(parameter)
        state["step"] += 1
        moments = min(state["step"], self.freeze_step)
        if frozen:
            state["m"].copy_(parameter.grad)
        else:
            state["m"].mul_(beta1).add_(parameter.grad, alpha=1 - beta1)
            state["v"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        size = (state["v"] / (1 - beta2**moments)).sqrt_().add_(group["eps"])
        change = state["m"] / (1 - beta1**moments) / size
        if frozen:
            most = (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1**2 / beta2)) if beta1**2 < beta2 else math.inf
            change = torch.where(state["v"] == 0, torch.zeros_like(change), change.clamp_(-most, most))
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(change, alpha=-group["lr"])
