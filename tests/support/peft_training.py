"""Fine-tuning as PyTorch and peft do it, step by step beside stretto-train."""
import json
import random

WORDS = "every rank sends its part of the ring to the next one and adds what it has received before the step ends".split()


def write_examples(path, encode, end, count):
    """JSON lines of a prompt and a completion each, of 33 to 63 tokens, so that a sequence of 64 holds one. Returns for each its tokens, which end
    with `end`, and how many of them are the prompt's."""
    draw = random.Random(7)
    lines, examples = [], []
    while len(lines) < count:
        prompt, completion = " ".join(draw.choices(WORDS, k=15)), "".join(f" {word}" for word in draw.choices(WORDS, k=30))
        begin, whole = encode(prompt), encode(prompt + completion)
        assert 32 < len(whole) < 64 and whole[:len(begin)] == begin, whole
        lines.append(json.dumps({"prompt": prompt, "completion": completion}))
        examples.append((whole + [end], len(begin)))
    path.write_text("\n".join(lines))
    return examples


def losses_there(torch, model, examples, metrics):
    """Of a training loop of PyTorch's that sees all examples in each step, at the rates of these metrics."""
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.1)
    counted = sum(len(tokens) - prompt for tokens, prompt in examples)
    losses = []
    for line in metrics:
        optimizer.param_groups[0]["lr"] = line["lr"]
        optimizer.zero_grad()
        losses.append(0.0)
        for tokens, prompt in examples:
            logits = model(torch.tensor([tokens[:-1]])).logits[0, prompt - 1:]
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[prompt:]), reduction="sum") / counted
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    return losses
