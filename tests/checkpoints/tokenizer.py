"""A byte-level BPE tokenizer in the layout of Qwen2's: 256 bytes, 32 merges, 4 special tokens."""

from pathlib import Path
from typing import Any

from tests.checkpoints.writing import write_json

_LINES = (
    "Ġ t|h e|Ġt he|i n|e r|a n|Ġ a|o n|r e|Ġ s|e n|a t|o r|Ġ w|Ġ c|i s|"
    "e s|i t|Ġ o|o u|an d|Ġ f|Ġ p|in g|l l|e d|Ġ b|a l|a r|Ġ m|Ġo f|Ġt o"
)
MERGES = _LINES.split("|")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
FIRST_SPECIAL = 256 + len(MERGES)
END, START, STOP, MASK = range(FIRST_SPECIAL, FIRST_SPECIAL + len(SPECIAL))
VOCABULARY = 320  # rows of the embedding: more than there are tokens, as published ones have
REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content"
    " + '<|im_end|>' + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def vocabulary() -> dict[str, int]:
    """Text of every ordinary token -> id: printable bytes, the other bytes, the merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    texts = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    texts += [merge.replace(" ", "") for merge in MERGES]
    assert len(set(texts)) == FIRST_SPECIAL
    return {text: i for i, text in enumerate(texts)}


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, vocab.json and merges.txt."""
    added = [
        {"id": FIRST_SPECIAL + i, "content": text, **_flags()} for i, text in enumerate(SPECIAL)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    split = {"type": "Split", "pattern": {"Regex": REGEX}, "behavior": "Isolated", "invert": False}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary(),
        "merges": [merge.split(" ") for merge in MERGES],
    }
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {**level, "use_regex": False}],
        },
        "post_processor": {**level, "use_regex": False},
        "decoder": {**level, "use_regex": False},
        "model": model,
    }
    write_json(folder / "tokenizer.json", whole)
    write_json(folder / "tokenizer_config.json", _config())
    write_json(folder / "vocab.json", vocabulary())
    (folder / "merges.txt").write_bytes(("#version: 0.2\n" + "\n".join(MERGES) + "\n").encode())


def _config() -> dict[str, Any]:
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(FIRST_SPECIAL + i): {"content": text, **_flags()} for i, text in enumerate(SPECIAL)
        },
        "additional_special_tokens": list(SPECIAL[1:]),
        "bos_token": None,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL[2],
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": SPECIAL[0],
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _flags() -> dict[str, bool]:
    names = ("single_word", "lstrip", "rstrip", "normalized")
    return {**dict.fromkeys(names, False), "special": True}
