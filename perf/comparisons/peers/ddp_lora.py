"""Measures tokens per second of peft's LoRA on transformers' Llama under PyTorch 2's DistributedDataParallel over Gloo: eager, with
scaled_dot_product_attention and fused AdamW; only the adapters are trained. gpt.py says which ranks it starts and what it prints."""
import peft
import torch
import transformers
from torch import nn

import gpt


class Adapted(nn.Module):
    def __init__(self, options):
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=options.vocab, hidden_size=options.hidden, intermediate_size=options.mlp, num_hidden_layers=options.layers,
            num_attention_heads=options.heads, num_key_value_heads=options.kv_heads, max_position_embeddings=options.seq_length,
            tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa")
        base = transformers.LlamaForCausalLM(config)
        if options.dtype == "bf16":
            base = base.to(torch.bfloat16)  # the frozen base; autocast leaves nothing to convert in each step
        self.model = peft.get_peft_model(base, peft.LoraConfig(r=options.lora, lora_alpha=2 * options.lora, target_modules="all-linear"))

    def forward(self, inputs, targets):
        return gpt.loss_of(self.model(input_ids=inputs).logits, targets)


class Trained(gpt.DataParallel):
    def __init__(self, options):
        super().__init__(options, nn.parallel.DistributedDataParallel(Adapted(options), gradient_as_bucket_view=True), fused=True)
        self.parameters = [each for each in self.parameters if each.requires_grad]


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    gpt.main(__doc__, Trained, kv_heads=2, mlp=1024, lora=8)
