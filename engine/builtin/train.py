"""Trains the built-in model: ``python -m engine.builtin.train [--out DIR] [--steps N] [--seed N]``.

Trains a byte-level BPE tokenizer and a Qwen3-shaped decoder from scratch on the chats of
`engine.builtin.corpus`, and writes a Hugging Face folder. The loss covers assistant tokens only, in
bf16 autocast over float32 weights. `--minutes` limits the time instead of the steps, and `--resume`
continues from the existing weights.

The shipped weights took 1,000 steps in 30 minutes, then 400 in 9 minutes with ``--resume --rate
1.5e-3 --seed 1`` after arithmetic, stories and greetings got larger shares of the corpus, on two
CPU cores shared with other work. Training loss at the end: 0.094 nats per assistant token (moving
average). The schedule of the first run was shortened from 2,000 steps during the run, so a fresh
run produces similar weights, not these.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from engine.builtin import MODEL_DIR
from engine.builtin.corpus import Chat, chats

VOCAB_SIZE = 3072
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)

_BATCH_TOKENS = 3072  # a multiple of every width: all batches hold as many tokens
_WIDTHS = (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
_WARMUP_STEPS = 40
_TOKENIZER_CHATS = 20_000
_IGNORED = -100


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded chats: token `ids` and next-token `labels`, both int64 [chats, length]."""

    ids: torch.Tensor
    labels: torch.Tensor


def train_tokenizer(seed: int) -> Tokenizer:
    """A byte-level BPE of `VOCAB_SIZE` tokens that can encode any text.

    Every newline and every digit is a token of its own. So no token spans the end of a role header,
    whatever the message begins with, and the tokens of a chat only grow from turn to turn.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", behavior="isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (
        f"{message['role']}\n{message['content']}"
        for chat in islice(chats(seed), _TOKENIZER_CHATS)
        for message in chat.messages()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def build_model(tokenizer: Tokenizer, seed: int) -> Qwen3ForCausalLM:
    """An untrained model: 4.6 M parameters, 9.2 MB in bf16."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=576,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=_id(tokenizer, END),
        pad_token_id=_id(tokenizer, PAD),
    )
    return Qwen3ForCausalLM(config)


def _id(tokenizer: Tokenizer, token: str) -> int:
    found: int | None = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def encode(tokenizer: Tokenizer, chat: Chat) -> tuple[list[int], list[int]]:
    """Encode `chat` as the chat template renders it, with labels shifted by one.

    A label is the next token if that belongs to a reply or ends it, else `_IGNORED`.
    """
    start, end = _id(tokenizer, START), _id(tokenizer, END)
    newline = tokenizer.encode("\n").ids
    ids: list[int] = []
    targets: list[int] = []
    for message in chat.messages():
        header = [start, *tokenizer.encode(message["role"] + "\n").ids]
        body = [*tokenizer.encode(message["content"]).ids, end]
        ids += header + body + newline
        learned = body if message["role"] == "assistant" else [_IGNORED] * len(body)
        targets += [_IGNORED] * len(header) + learned + [_IGNORED] * len(newline)
    return ids[:-1], targets[1:]


def batches(tokenizer: Tokenizer, seed: int) -> Iterator[Batch]:
    """An endless stream of batches of chats of similar length.

    A batch is `width` tokens wide and `_BATCH_TOKENS // width` chats high, with a fixed set of
    widths: matrix kernels are then built once for each shape and not again for every batch.
    """
    waiting: dict[int, list[tuple[list[int], list[int]]]] = {width: [] for width in _WIDTHS}
    for chat in chats(seed):
        pair = encode(tokenizer, chat)
        width = next((width for width in _WIDTHS if width >= len(pair[0])), None)
        if width is None:
            continue
        group = waiting[width]
        group.append(pair)
        if len(group) == _BATCH_TOKENS // width:
            yield Batch(
                _pad([ids for ids, _ in group], width, 0),
                _pad([labels for _, labels in group], width, _IGNORED),
            )
            group.clear()


def _pad(rows: list[list[int]], width: int, value: int) -> torch.Tensor:
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def loss_of(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy in nats over the labelled tokens; only those get logits."""
    # Padding is on the right, so causal attention hides it from the labelled tokens.
    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    labels = batch.labels.flatten()
    labelled = (labels != _IGNORED).nonzero().squeeze(1)
    # A matrix kernel is built for each new shape, at some 0.3 s, so keep the shapes few.
    labelled = functional.pad(labelled, (0, -len(labelled) % 512))
    labels = labels[labelled]
    logits = model.lm_head(hidden.flatten(0, 1)[labelled])
    return functional.cross_entropy(logits.float(), labels)


def optimizers(model: Qwen3ForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed" not in name
        (matrices if hidden else others).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def schedule(done: float, step: int) -> float:
    """Factor of the learning rate: linear warm-up by `step`, cosine to 1 % by the share `done`."""
    return min(1.0, (step + 1) / _WARMUP_STEPS) * (0.505 + 0.495 * math.cos(math.pi * done))


def train(
    model: Qwen3ForCausalLM,
    stream: Iterator[Batch],
    *,
    rate: float,
    steps: int,
    seconds: float | None = None,
) -> float:
    """Train for `steps` steps, or for `seconds` instead if given.

    Returns the loss in nats per assistant token, averaged over the last steps.
    """
    model.train()
    steppers = optimizers(model, rate)
    start, tokens, average = time.perf_counter(), 0, math.nan
    step, done = 0, 0.0
    while done < 1.0:
        factor = schedule(done, step)
        for stepper in steppers:
            for group in stepper.param_groups:
                group["lr"] = rate * factor
        batch = next(stream)
        # One core: on 55-token rows flash attention's backward pass took 0.48 s of a 1.1 s step;
        # on 1536-token rows eager took 9 s.
        model.set_attn_implementation("eager" if batch.ids.shape[1] < 512 else "sdpa")
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
        model.zero_grad()
        average = loss.item() if step == 0 else 0.98 * average + 0.02 * loss.item()
        tokens += batch.ids.numel()
        step += 1
        elapsed = time.perf_counter() - start
        done = step / steps if seconds is None else elapsed / seconds
        if step % 25 == 0:
            speed = tokens / elapsed
            print(
                f"step {step}, {elapsed:.0f} s, loss {average:.4f}, {speed:.0f} tokens/s",
                flush=True,
            )
    return average


def save(model: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write model and tokenizer to `folder`, in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    model.set_attn_implementation("sdpa")
    model.train(False)
    model.bfloat16()
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.generation_config.pad_token_id = model.config.pad_token_id
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    wrapped.save_pretrained(folder, save_jinja_files=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the built-in model.")
    parser.add_argument("--out", type=Path, default=MODEL_DIR, help="folder to write")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, default=2000, help="training steps")
    length.add_argument("--minutes", type=float, help="training time, in place of steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the folder in --out")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.resume:
        tokenizer = Tokenizer.from_file(str(arguments.out / "tokenizer.json"))
        model = Qwen3ForCausalLM.from_pretrained(arguments.out, dtype=torch.float32)
    else:
        tokenizer = train_tokenizer(arguments.seed)
        model = build_model(tokenizer, arguments.seed)
    loss = train(
        model,
        batches(tokenizer, arguments.seed + 1),
        rate=arguments.rate,
        steps=arguments.steps,
        seconds=None if arguments.minutes is None else 60 * arguments.minutes,
    )
    save(model, tokenizer, arguments.out)
    print(f"loss {loss:.4f} nats per assistant token, written to {arguments.out}")


if __name__ == "__main__":
    main()
