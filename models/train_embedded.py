"""Train the embedded model on text of the grammar. Run by hand; nothing imports this file.

    python -m headrace.models.train_embedded --out models/embedded

An unfinished model is trained further with `--start FOLDER`. The shipped one had two runs: 700 steps of 8 windows at rate 4e-3
on an earlier, more repetitive state of the grammar, then 500 steps of 4 windows at rate 2.5e-3 with seed 2 on this one. Its
sentences are grammatical; over several sentences it may mix up who has what.

It needs torch (`pip install torch`), which the rest of the package does not, and some minutes of one core. The result,
config.json, model.safetensors (float16) and tokenizer.json, is what the repository ships. A new training gives other
weights.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

try:
    from headrace.models.grammar import stories
except ImportError:  # torch often lives in an environment of its own, where the package is not installed
    from grammar import stories

BOS = "<s>"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 128,
    "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 0,
    "torch_dtype": "float16",
}
HEADS, KV_HEADS, HEAD_DIM = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["head_dim"]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE of 512 entries; the file itself says that BOS precedes a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"], special_tokens=[BOS], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return tokenizer


def initial_weights(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Weights under the names of a Hugging Face Llama checkpoint; linears as [outputs, inputs]."""
    width, ffn = CONFIG["hidden_size"], CONFIG["intermediate_size"]

    def normal(rows: int, columns: int, std: float = 0.02) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * std

    weights = {"model.embed_tokens.weight": normal(CONFIG["vocab_size"], width), "model.norm.weight": torch.ones(width)}
    residual_std = 0.02 / math.sqrt(2 * CONFIG["num_hidden_layers"])
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": torch.ones(width),
            prefix + "post_attention_layernorm.weight": torch.ones(width),
            prefix + "self_attn.q_proj.weight": normal(HEADS * HEAD_DIM, width),
            prefix + "self_attn.k_proj.weight": normal(KV_HEADS * HEAD_DIM, width),
            prefix + "self_attn.v_proj.weight": normal(KV_HEADS * HEAD_DIM, width),
            prefix + "self_attn.o_proj.weight": normal(width, HEADS * HEAD_DIM, residual_std),
            prefix + "mlp.gate_proj.weight": normal(ffn, width),
            prefix + "mlp.up_proj.weight": normal(ffn, width),
            prefix + "mlp.down_proj.weight": normal(width, ffn, residual_std),
        }
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def rope(x: torch.Tensor) -> torch.Tensor:
    """Rotate [batch, heads, tokens, head_dim] by position; halves are paired, as in Hugging Face's Llama."""
    half = HEAD_DIM // 2
    frequency = CONFIG["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = (torch.arange(x.shape[2], dtype=torch.float64)[:, None] * frequency).float()
    cos, sin = angle.cos(), angle.sin()
    x0, x1 = x[..., :half], x[..., half:]
    return torch.cat((x0 * cos - x1 * sin, x1 * cos + x0 * sin), dim=-1)


def rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * weight


def logits(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """[batch, tokens] int64 -> [batch, tokens, vocab]."""
    batch, length = tokens.shape
    x = F.embedding(tokens, weights["model.embed_tokens.weight"])
    for layer in range(CONFIG["num_hidden_layers"]):
        w = {name.split(f"layers.{layer}.")[1]: t for name, t in weights.items() if f"layers.{layer}." in name}
        h = rmsnorm(x, w["input_layernorm.weight"])
        q, k, v = (
            (h @ w[f"self_attn.{name}_proj.weight"].T).view(batch, length, -1, HEAD_DIM).transpose(1, 2) for name in "qkv"
        )
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (rope(k), v))
        attended = F.scaled_dot_product_attention(rope(q), k, v, is_causal=True)
        x = x + attended.transpose(1, 2).reshape(batch, length, -1) @ w["self_attn.o_proj.weight"].T
        h = rmsnorm(x, w["post_attention_layernorm.weight"])
        x = x + (F.silu(h @ w["mlp.gate_proj.weight"].T) * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    return rmsnorm(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T


def greedy(weights: dict[str, torch.Tensor], tokenizer: Tokenizer, prompt: str, count: int) -> str:
    tokens = tokenizer.encode(prompt).ids
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(logits(weights, torch.tensor([tokens]))[0, -1].argmax()))
    return tokenizer.decode(tokens)


def save(folder: Path, weights: dict[str, torch.Tensor], tokenizer: Tokenizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({name: w.detach().half().contiguous() for name, w in weights.items()}, folder / "model.safetensors")


def train(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(args.seed)
    texts = [story + "\n" for story in stories(args.seed, args.stories)]
    if args.start is None:
        tokenizer, weights = train_tokenizer(texts[:4000]), initial_weights(generator)
    else:
        tokenizer = Tokenizer.from_file(str(args.start / "tokenizer.json"))
        weights = {name: w.float().requires_grad_() for name, w in load_file(args.start / "model.safetensors").items()}
    stream = torch.tensor([token for encoded in tokenizer.encode_batch(texts) for token in encoded.ids])
    print(f"{len(stream)} tokens in {len(texts)} stories", flush=True)
    matrices = [w for name, w in weights.items() if w.ndim == 2]
    vectors = [w for name, w in weights.items() if w.ndim == 1]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=args.rate, betas=(0.9, 0.98)
    )
    length, started = CONFIG["max_position_embeddings"], time.time()
    for step in range(args.steps):
        warm = min(1.0, (step + 1) / 50)
        for group in optimiser.param_groups:
            group["lr"] = args.rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / args.steps)))
        start = torch.randint(0, len(stream) - length - 1, (args.batch,), generator=generator)
        window = stream[start[:, None] + torch.arange(length + 1)]
        output = logits(weights, window[:, :-1])
        loss = F.cross_entropy(output.reshape(-1, CONFIG["vocab_size"]), window[:, 1:].reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        if step % 25 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.4f} {time.time() - started:.0f} s", flush=True)
        if step % 100 == 99:
            save(args.out, weights, tokenizer)
    for prompt in ("Once upon a time", "The dog", "One morning, Anna"):
        print(greedy(weights, tokenizer, prompt, 60), flush=True)
    save(args.out, weights, tokenizer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="folder of an earlier run to go on from")
    parser.add_argument("--steps", type=int, default=1800, help="about 0.4 s each on one core")
    parser.add_argument("--stories", type=int, default=40000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1)
    train(parser.parse_args())
