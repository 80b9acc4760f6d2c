#!/usr/bin/env python3
"""Writes decoders/NAME: small models of Hugging Face's transformers, and what transformers computes from them in float64.

Each directory has config.json and model.safetensors as save_pretrained writes them, in float32; the config.json of some has the form
of transformers 4 (rope_theta and rope_scaling), of others that of 5 (rope_parameters). reference.safetensors holds

  tokens, targets       I32 [2, 24]
  logits                F64 [2, 24, vocabulary]
  loss                  F64: the mean cross entropy over all tokens
  gradient.<name>       F64: the gradient of the loss with respect to each tensor of model.safetensors

transformers computes norms and the softmax in float32 whatever the type of the model. Here its modules see another torch, whose
float32 is float64. Angles of rotary positions stay in float32 as transformers has them, but their cosines and sines are rounded
from float64: PyTorch's are off by a unit in the last place in 5 % of all cases, which ones depends on the processor.

Needs PyTorch 2 and transformers 5.24. Everything is drawn from a fixed seed; running this again writes the same files.
"""

import importlib
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file
from torch.nn import functional

SEQUENCES, LENGTH, VOCABULARY = 2, 24, 32

# Pairs of a head of 12 elements turn with waves of 6 to 292 tokens.
SCALED = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12}


def scaled(rope_type, **others):
    return SCALED | {"rope_parameters": {"rope_type": rope_type, "rope_theta": 100.0, **others}}


# The form of config.json, model_type, and what differs from the usual sizes.
DECODERS = {
    "llama": (4, "llama", {"num_key_value_heads": 2}),
    "llama_untied": (5, "llama", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "llama_biases": (4, "llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    "llama_linear": (5, "llama", scaled("linear", factor=3.0)),
    "llama_dynamic": (4, "llama", scaled("dynamic", factor=2.0) | {"max_position_embeddings": 16}),
    "llama_llama3": (5, "llama", scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
                     | {"max_position_embeddings": 512}),
    "llama_yarn": (4, "llama", scaled("yarn", factor=4.0, original_max_position_embeddings=64) | {"max_position_embeddings": 256}),
    "mistral": (5, "mistral", {"num_key_value_heads": 2, "sliding_window": 7}),
    "qwen2": (4, "qwen2", {"num_key_value_heads": 2}),
    "qwen3": (5, "qwen3", {"num_key_value_heads": 2, "head_dim": 6}),
}


def config_of(model_type, differences):
    usual = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
             "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.AutoConfig.for_model(model_type, **(usual | differences))
    config._attn_implementation = "eager"
    return config


class Float64Torch:
    """torch, but for those who ask it for float32."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def exact_cosines(rotary, arguments, named, result):
    """A hook behind the rotary module."""
    x = arguments[0]
    positions = named["position_ids"] if "position_ids" in named else arguments[1]
    angles = positions[..., None].float() * rotary.inv_freq.float()
    angles = torch.cat((angles, angles), dim=-1).double()
    exact = [(function(angles).float() * rotary.attention_scaling).to(x.dtype) for function in (torch.cos, torch.sin)]
    for ours, theirs in zip(exact, result):
        difference = (ours - theirs).abs().max().item()
        assert difference <= 2**-23 * max(1, rotary.attention_scaling), difference
    return tuple(exact)


def model_of(model_type, differences):
    """Weights are float32 numbers so large that all parts of the model matter to its logits."""
    model = transformers.AutoModelForCausalLM.from_config(config_of(model_type, differences), dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_(around + 0.3 * torch.randn(parameter.shape, generator=generator))
    importlib.import_module(type(model).__module__).torch = Float64Torch()
    model.model.rotary_emb.register_forward_hook(exact_cosines, with_kwargs=True)
    return model


def as_transformers_4(config):
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.57.1"
    return config


def write(directory, form, model_type, differences):
    model = model_of(model_type, differences)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if form == 4:
        path = directory / "config.json"
        path.write_text(json.dumps(as_transformers_4(json.loads(path.read_text())), indent=2, sort_keys=True) + "\n")
    names = {name for name, _ in model.named_parameters()}
    model.double()
    generator = torch.Generator().manual_seed(77)
    tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), generator=generator)
    targets = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), generator=generator)
    logits = model(tokens, use_cache=False).logits
    assert logits.dtype == torch.float64
    loss = functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))
    loss.backward()
    reference = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach(), "loss": loss.detach()}
    reference |= {f"gradient.{name}": parameter.grad for name, parameter in model.named_parameters()}
    assert len(names) == len(reference) - 4
    save_file(reference, directory / "reference.safetensors")
    return loss.item(), logits.abs().max().item()


def main():
    there = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("decoders"))
    for name, (form, model_type, differences) in DECODERS.items():
        print(name, *write(there / name, form, model_type, differences))


if __name__ == "__main__":
    torch.set_num_threads(1)  # one order of addition
    main()
