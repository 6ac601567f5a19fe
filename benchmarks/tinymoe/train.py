"""Train a small mixture-of-experts language model, then record the traces that the package ships.

    python benchmarks/tinymoe/train.py --corpus corpus.npz --minutes 5 --out DIR

Writes `tinymoe-prose.parquet`, `tinymoe-code.parquet` and `report.json`. The shipped traces were made by this
script on one H200; `traces/bundled/README.md` says with what result. `--tiny` tries the whole path on a CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from expert_residency.traces.parquet import write_parquet
from expert_residency.traces.record import find_routers, record
from expert_residency.traces.trace import RoutingTrace

AUX_LOSS = 0.003
CONTEXT = 512
PROMPT, DECODE, TEMPERATURE = 128, 512, 0.8


def build(vocab: int, tiny: bool, device: str) -> Any:
    from transformers import OlmoeConfig, OlmoeForCausalLM

    config = OlmoeConfig(
        vocab_size=vocab,
        hidden_size=64 if tiny else 512,
        intermediate_size=32 if tiny else 256,
        num_hidden_layers=2 if tiny else 12,
        num_attention_heads=8,
        num_key_value_heads=8,
        num_experts=16 if tiny else 64,
        num_experts_per_tok=4 if tiny else 8,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
        attn_implementation="sdpa",
    )  # fmt: skip
    config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    return OlmoeForCausalLM(config).to(device=device, dtype=torch.bfloat16)


def windows(data: dict[str, torch.Tensor], split: str, n: int, generator: np.random.Generator) -> torch.Tensor:
    """(n, CONTEXT + 1) token ids, half prose, half code."""
    rows = []
    for i in range(n):
        ids = data[f"{('prose', 'code')[i % 2]}_{split}"]
        start = int(generator.integers(0, len(ids) - CONTEXT - 1))
        rows.append(ids[start : start + CONTEXT + 1])
    return torch.stack(rows)


def losses(model: Any, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(cross entropy in nats, load-balance loss: experts x sum of share routed x mean probability)."""
    output = model.model(input_ids=batch[:, :-1], output_router_logits=True)
    logits = model.lm_head(output.last_hidden_state)
    main = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    balance = torch.zeros((), device=batch.device)
    for raw in output.router_logits:
        probabilities = raw.float().softmax(-1)
        experts = probabilities.shape[-1]
        chosen = raw.topk(model.config.num_experts_per_tok, dim=-1).indices.flatten()
        share = torch.zeros(experts, device=raw.device).scatter_add_(
            0, chosen, torch.ones_like(chosen, dtype=torch.float32)
        )
        balance = balance + experts * (share / chosen.numel() * probabilities.mean(0)).sum()
    return main, balance / len(output.router_logits)


class Master:
    """AdamW on float32 copies of bfloat16 parameters."""

    def __init__(self, model: Any) -> None:
        self.low = [p for p in model.parameters() if p.requires_grad]
        self.high = [p.detach().float().clone().requires_grad_() for p in self.low]
        decayed = [h for h in self.high if h.ndim > 1]
        plain = [h for h in self.high if h.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), fused=self.low[0].is_cuda)

    def step(self, rate: float) -> None:
        for low, high in zip(self.low, self.high, strict=True):
            high.grad = None if low.grad is None else low.grad.float()
            low.grad = None
        torch.nn.utils.clip_grad_norm_(self.high, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        with torch.no_grad():
            for low, high in zip(self.low, self.high, strict=True):
                low.copy_(high)


def train(model: Any, data: dict[str, torch.Tensor], minutes: float, batch: int, peak: float) -> dict[str, Any]:
    """Warm up over 3 % of the time, then a cosine down to 5 % of the peak rate."""
    optimizer, generator = Master(model), np.random.default_rng(1)
    model.train()
    start, steps, history = time.monotonic(), 0, []
    while (share := (time.monotonic() - start) / (60 * minutes)) < 1:
        rate = peak * min(1.0, share / 0.03) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share)))
        main, balance = losses(model, windows(data, "train", batch, generator))
        (main + AUX_LOSS * balance).backward()
        optimizer.step(rate)
        steps += 1
        if steps % 100 == 0:
            history.append((steps, round(main.item(), 4), round(balance.item(), 4)))
            print(f"{time.monotonic() - start:6.1f} s  step {steps}  loss {main.item():.3f}", flush=True)
    return {"steps": steps, "tokens_seen": steps * batch * CONTEXT, "history": history}


def held_out(model: Any, data: dict[str, torch.Tensor], n: int) -> dict[str, float]:
    """Mean loss in nats a token on held-out windows, and the entropy of the training unigram on them."""
    out = {}
    model.eval()
    counts = sum(torch.bincount(data[f"{k}_train"], minlength=model.config.vocab_size) for k in ("prose", "code"))
    unigram = -torch.log((counts + 1) / (counts + 1).sum())
    for kind in ("prose", "code"):
        batch = windows(
            {f"{k}_held": data[f"{kind}_held"] for k in ("prose", "code")}, "held", n, np.random.default_rng(2)
        )
        with torch.no_grad():
            out[f"{kind}_loss_nats"] = float(np.mean([losses(model, part)[0].item() for part in batch.split(8)]))
        out[f"{kind}_unigram_nats"] = float(unigram[batch[:, 1:]].mean())
    return out


def routing(trace: RoutingTrace) -> dict[str, float]:
    """How far the decode routing is from uniform and from memoryless, means over layers."""
    g = trace.geometry
    decode = trace.select_passes(trace.pass_phase == 1)
    ids = decode.row_experts.reshape(decode.n_passes, g.n_layers, g.top_k).astype(int)
    entropy, top, overlap = [], [], []
    for layer in range(g.n_layers):
        share = np.bincount(ids[:, layer].ravel(), minlength=g.experts) / ids[:, layer].size
        entropy.append(-(share[share > 0] * np.log2(share[share > 0])).sum())
        top.append(np.sort(share)[::-1][: g.experts // 4].sum())
        overlap.append(
            np.mean([len(set(a) & set(b)) for a, b in zip(ids[:-1, layer], ids[1:, layer], strict=True)])
        )
    hits = {}
    for depth, (offsets, guess) in trace.predictions.items():
        decoding = np.flatnonzero((trace.event_phase == 1) & (np.diff(offsets) > 0))
        found = [
            len(set(guess[offsets[e] : offsets[e + 1]])
                & set(trace.keys[trace.event_offsets[e] : trace.event_offsets[e + 1]] % g.experts))
            for e in decoding
        ]  # fmt: skip
        hits[f"recall_look_ahead_{depth}"] = float(np.mean(found) / g.top_k)
    return {
        "routing_entropy_bits": float(np.mean(entropy)),
        "uniform_entropy_bits": math.log2(g.experts),
        "share_of_hottest_quarter": float(np.mean(top)),
        "lag1_overlap_of_k": float(np.mean(overlap)),
        "lag1_overlap_by_chance": g.top_k**2 / g.experts,
        **hits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--batch", type=int, default=64, help="windows a step")
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()

    from tokenizers import Tokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with np.load(args.corpus) as stored:
        data = {k: torch.from_numpy(stored[k].astype(np.int64)).to(device) for k in stored.files}
    tokenizer = Tokenizer.from_file(str(args.corpus.with_suffix(".tokenizer.json")))
    model = build(tokenizer.get_vocab_size(), args.tiny, device)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "aux_loss_coefficient": AUX_LOSS,
        "corpus_tokens": {k: len(v) for k, v in data.items()},
        **train(model, data, args.minutes, args.batch, args.rate),
        **held_out(model, data, 64),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    decode = 32 if args.tiny else DECODE
    for kind in ("prose", "code"):
        ids = data[f"{kind}_held"].cpu().numpy()
        starts = np.random.default_rng(3).integers(0, len(ids) - PROMPT, 2)
        prompts = [ids[s : s + PROMPT].tolist() for s in starts]
        trace = record(model, prompts, decode_tokens=decode, temperature=TEMPERATURE, seed=4, look_ahead=2,
                       name="tinymoe", notes=f"two held-out {kind} prompts of {PROMPT} tokens, each continued by "
                       f"{decode} sampled tokens; model trained by benchmarks/tinymoe/train.py")  # fmt: skip
        assert trace.row_weights is not None
        trace = replace(trace, row_weights=trace.row_weights.astype(np.float16).astype(np.float32))
        write_parquet(trace, args.out / f"tinymoe-{kind}.parquet")
        report[f"{kind}_routing"] = routing(trace)
        report[f"{kind}_prompt"] = tokenizer.decode(prompts[0])
        report[f"{kind}_sample"] = sample(model, tokenizer, prompts[0], 100)
    assert len(find_routers(model)) == trace.geometry.n_layers
    (args.out / "report.json").write_text(json.dumps(report, indent=1, allow_nan=False))
    print(json.dumps({k: v for k, v in report.items() if k != "history"}, indent=1))


def sample(model: Any, tokenizer: Any, prompt: list[int], n: int) -> str:
    """A continuation to look at, sampled as the recording was."""
    torch.manual_seed(4)
    out = model.generate(torch.tensor([prompt], device=model.device), max_new_tokens=n, do_sample=True,
                         temperature=TEMPERATURE, top_k=0)  # fmt: skip
    return str(tokenizer.decode(out[0, len(prompt) :].tolist()))


if __name__ == "__main__":
    main()
