#!/usr/bin/env python3
"""Records for tests/golden/: transformer layers of PyTorch, and models and tokens of the package transformers.

usage: python3 scripts/record_transformers.py TEXT [OUTPUT_DIR]      (needs torch >= 2.5, numpy, transformers >= 5)

TEXT is what the small byte-pair vocabulary is made of (tinyshakespeare). Writes
  transformer.safetensors   torch.nn.TransformerEncoderLayer and MultiheadAttention: inputs, weights, results, gradients
  gpt/gold.safetensors      a small GPT-2: logits, all gradients, and 10 losses of AdamW with clipping
  gpt/gpt2/, gpt/llama/     small randomly initialised models as save_pretrained() writes them
  gpt/models.safetensors    their logits, and greedy continuations
  gpt/strings.json          odd strings and their tokens
"""

import json
import pathlib
import random
import sys
import tempfile

import numpy as np
import torch
import transformers
from golden_recorder import Golden, uniform
from tokenizers import ByteLevelBPETokenizer


def fill(module, seed_name, scale=0.5):
    """Weights that are exact in float32 and depend on names alone."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            low, high = (0.5, 1.5) if "norm" in name and name.endswith("weight") else (-scale, scale)
            p.copy_(torch.from_numpy(uniform(f"{seed_name}|{name}", p.shape, low, high)))


def record_weights(g, case, module):
    for name, p in module.named_parameters():
        g.put(case, name, p.detach().float())


def record_gradients(g, case, module):
    for name, p in module.named_parameters():
        g.put(case, f"grad.{name}", p.grad)


def transformer():
    g = Golden()
    block = torch.nn.TransformerEncoderLayer(12, 3, 20, 0.0, "gelu", batch_first=True, norm_first=True).double()
    fill(block, "block")
    record_weights(g, "block", block)
    x = torch.from_numpy(uniform("block|x", (2, 5, 12))).double().requires_grad_()
    g.put("block", "x", x.detach().float())
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5).double()
    out = block(x, src_mask=mask, is_causal=True)
    g.put("block", "out", out)
    (out * out).sum().backward()
    record_gradients(g, "block", block)
    g.put("block", "grad.x", x.grad)

    attention = torch.nn.MultiheadAttention(12, 3, batch_first=True).double()
    fill(attention, "cross")
    record_weights(g, "cross", attention)
    inputs = {name: uniform(f"cross|{name}", (2, length, 12)) for name, length in (("query", 4), ("key", 6), ("value", 6))}
    for name, values in inputs.items():
        g.put("cross", name, values)
    seen = (np.arange(24).reshape(4, 6) * 7 % 5 > 0).astype(np.int64)
    g.put("cross", "mask", seen)
    query, key, value = (torch.from_numpy(v).double() for v in inputs.values())
    out, _ = attention(query, key, value, attn_mask=torch.from_numpy(seen) == 0, need_weights=False)
    g.put("cross", "out", out)
    (out * out).sum().backward()
    record_gradients(g, "cross", attention)
    return g


def gold():
    g = Golden()
    config = transformers.GPT2Config(vocab_size=61, n_positions=24, n_embd=32, n_layer=3, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = transformers.GPT2LMHeadModel(config).double()
    fill(model, "gold", 0.2)
    names = {name: p for name, p in model.named_parameters()}
    for name, p in names.items():
        g.put("weights", name, p.detach().float())
    tokens = torch.arange(4 * 25).reshape(4, 25) * 37 % 61
    g.put("batch", "tokens", tokens)
    x, y = tokens[:, :-1], tokens[:, 1:]

    def loss_of():
        logits = model(x).logits
        return logits, torch.nn.functional.cross_entropy(logits.reshape(-1, 61), y.reshape(-1))

    logits, loss = loss_of()
    loss.backward()
    g.put("first", "logits", logits.detach().float())
    for name, p in names.items():
        g.put("first", f"grad.{name}", p.grad.float())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        _, loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    g.put("training", "losses", np.array(losses))
    return g


def vocabulary(text, folder):
    odd = "".join(odd_strings(300, random.Random(7)))
    with tempfile.TemporaryDirectory() as temporary:
        corpus = pathlib.Path(temporary) / "corpus.txt"
        corpus.write_text(text[:300000] + odd, encoding="utf-8")
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train([str(corpus)], vocab_size=600, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False)
        tokenizer.save_model(str(folder))


def odd_strings(count, rng):
    """Contractions, runs of all sorts of spaces, numbers, marks, letters of many scripts, emoji, and joiners."""
    pieces = ["'s", "'t", "'re", "'VE", "'ll", "don't", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\x85",
              "\u200b", "\u200d", "\ufeff", "<|endoftext|>", "<|endof", "|>", "!!!", "...", "--", "_", "$9.99", "3.14", "½", "²³", "Ⅷ", "٣٤", "०१",
              "hello", "World", "naïve", "Straße", "Ωμέγα", "Привет", "שלום", "مرحبا", "हिन्दी", "ไทย", "日本語", "中文", "한국어", "e\u0301", "🙂", "👩‍👩‍👧", "🇩🇪",
              "\U0001D54F", "\u0345", "ª", "ﬁ", "ǅ", "a1b2", "x=y", "C++", "\\n", "\"", "`", "~", "\u007f", "\x00", "\x01", "é", "ß", "KING:", " the", " of"]
    strings = []
    for i in range(count):
        parts = [rng.choice(pieces) for _ in range(rng.randint(1, 12))]
        if i % 3 == 0:
            parts += [chr(rng.choice([rng.randint(0x20, 0x2FF), rng.randint(0x300, 0xD7FF), rng.randint(0xE000, 0xFFFF), rng.randint(0x10000, 0x1FFFF)])) for _ in range(4)]
        strings.append("".join(parts))
    return strings


def models(text, folder):
    g = Golden()
    family = {
        "gpt2": lambda size: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=size, n_positions=32, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0)),
        "llama": lambda size: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(vocab_size=size, max_position_embeddings=32, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-5, rope_theta=500.0, bos_token_id=0, eos_token_id=0)),
    }
    for name, make in family.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        vocabulary(text, folder / name)
        size = len(json.loads((folder / name / "vocab.json").read_text(encoding="utf-8")))
        model = make(size)
        fill(model, name, 0.3)
        model.eval()
        model.save_pretrained(folder / name)
        for extra in ("generation_config.json",):
            (folder / name / extra).unlink(missing_ok=True)
        tokens = torch.arange(2 * 17).reshape(2, 17) * 101 % size
        g.put(name, "tokens", tokens)
        with torch.no_grad():
            g.put(name, "logits", model.double()(tokens).logits.float())
            prompt = tokens[:1, :5]
            generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
        g.put(name, "generated", generated[0])
    return g


def strings(folder):
    tokenizer = transformers.GPT2Tokenizer.from_pretrained(str(folder / "gpt2"))
    texts = odd_strings(1000, random.Random(1))
    rows = [[text, tokenizer(text)["input_ids"]] for text in texts]
    (folder / "strings.json").write_text(json.dumps(rows, ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    golden = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parent.parent / "tests/golden"
    folder = golden / "gpt"
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    transformer().write(golden / "transformer.safetensors")
    gold().write(folder / "gold.safetensors")
    models(text, folder).write(folder / "models.safetensors")
    strings(folder)


if __name__ == "__main__":
    main()
