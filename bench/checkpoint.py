"""Writes a draft checkpoint of a real model's shape with random weights, for timing `convert`.

    python -m llamaspec.bench.checkpoint DIR
    /usr/bin/time -v llamaspec convert DIR/draft --target DIR/target -o out.gguf

Shape: a DeepSpec draft for Qwen3-8B, five layers, 4.74 GB in bf16, the target's embedding and head
among it. Rows of a tensor repeat after 16 MB, so that writing it takes no time.
"""

import json
import struct
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from llamaspec.errors import OptionError

WIDTH, FEED_FORWARD, HEADS, KV_HEADS, HEAD_WIDTH = 4096, 12288, 32, 8, 128
LAYERS, VOCABULARY, RANK, TAPS, BLOCK = 5, 151936, 256, [1, 9, 17, 25, 33], 7
MASK, TARGET_LAYERS = 151669, 36
PIECE = 16 << 20


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the draft, by its checkpoint name."""
    found: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCABULARY, WIDTH),
        "lm_head.weight": (VOCABULARY, WIDTH),
        "fc.weight": (WIDTH, len(TAPS) * WIDTH),
        "hidden_norm.weight": (WIDTH,),
        "norm.weight": (WIDTH,),
        "markov_head.markov_w1.weight": (VOCABULARY, RANK),
        "markov_head.markov_w2.weight": (VOCABULARY, RANK),
        "confidence_head.proj.weight": (1, WIDTH + RANK),
        "confidence_head.proj.bias": (1,),
    }
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        found |= {
            f"{at}input_layernorm.weight": (WIDTH,),
            f"{at}post_attention_layernorm.weight": (WIDTH,),
            f"{at}self_attn.q_norm.weight": (HEAD_WIDTH,),
            f"{at}self_attn.k_norm.weight": (HEAD_WIDTH,),
            f"{at}self_attn.q_proj.weight": (HEADS * HEAD_WIDTH, WIDTH),
            f"{at}self_attn.k_proj.weight": (KV_HEADS * HEAD_WIDTH, WIDTH),
            f"{at}self_attn.v_proj.weight": (KV_HEADS * HEAD_WIDTH, WIDTH),
            f"{at}self_attn.o_proj.weight": (WIDTH, HEADS * HEAD_WIDTH),
            f"{at}mlp.gate_proj.weight": (FEED_FORWARD, WIDTH),
            f"{at}mlp.up_proj.weight": (FEED_FORWARD, WIDTH),
            f"{at}mlp.down_proj.weight": (WIDTH, FEED_FORWARD),
        }
    return found


def write_weights(path: Path) -> None:
    """The safetensors file, a piece at a time."""
    header, at = {}, 0
    for name, shape in shapes().items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    noise = np.random.default_rng(8).normal(0, 0.02, PIECE // 2).astype(np.float32)
    piece = (noise.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        while at > 0:
            file.write(piece[:at])
            at -= len(piece)


def draft_config() -> dict[str, Any]:
    """config.json of the draft."""
    return {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "block_size": BLOCK,
        "target_layer_ids": TAPS,
        "num_target_layers": TARGET_LAYERS,
        "mask_token_id": MASK,
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "num_hidden_layers": LAYERS,
        **sizes(),
    }


def sizes() -> dict[str, Any]:
    """What draft and target have in common."""
    return {
        "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_WIDTH,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
    }


def write_target(folder: Path) -> None:
    """A target's configuration and a tokenizer of bytes, pairs of bytes and numbered tokens."""
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **sizes()}
    config["num_hidden_layers"] = TARGET_LAYERS
    (folder / "config.json").write_text(json.dumps(config))
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + n) for n in range(256 - len(printable)))
    letters = [chr(byte) if byte in printable else next(others) for byte in range(256)]
    vocabulary = {text: number for number, text in enumerate(letters)}
    pairs = [a + b for a in letters for b in letters]
    merges = [" ".join(pair) for pair in pairs[: 2**15]]
    vocabulary |= {pair: 256 + number for number, pair in enumerate(pairs[: 2**15])}
    vocabulary |= {f"w{number}": number for number in range(256 + 2**15, MASK)}
    tokenizer = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": QWEN2},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
        "normalizer": {"type": "NFC"},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": MASK, "content": "<|mask|>", "special": True}],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def main(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """Write DIR/draft and DIR/target."""
    draft, target = folder / "draft", folder / "target"
    for place in (draft, target):
        if place.exists():
            raise OptionError(f"{place}: exists")
        place.mkdir(parents=True)
    (draft / "config.json").write_text(json.dumps(draft_config()))
    write_target(target)
    write_weights(draft / "model.safetensors")


if __name__ == "__main__":
    typer.run(main)
