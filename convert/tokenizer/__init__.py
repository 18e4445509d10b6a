"""The tokenizer of a checkpoint folder, as the metadata of a GGUF.

Only data is read: tokenizer.json or a SentencePiece tokenizer.model, with tokenizer_config.json,
added_tokens.json, config.json and the chat template beside them. No code of the checkpoint runs.
"""

from pathlib import Path

from llamaspec.convert.tokenizer import byte_level, sentencepiece, spaced_bpe
from llamaspec.convert.tokenizer.definition import read_definition, read_outline
from llamaspec.convert.tokenizer.files import MAX_SETTINGS, MAX_TOKENIZER, read_object
from llamaspec.convert.tokenizer.special import Settings, special_metadata
from llamaspec.convert.tokenizer.table import TokenizerValue
from llamaspec.convert.tokenizer.template import chat_templates
from llamaspec.errors import ModelLoadError

__all__ = ["MAX_VOCABULARY", "TokenizerValue", "read_tokenizer"]

MAX_VOCABULARY = 1 << 22
"""Rows of the largest vocabulary that is read; published ones have a quarter million."""


def read_tokenizer(folder: Path, n_vocab: int) -> dict[str, TokenizerValue]:
    """Return a checkpoint folder's tokenizer as GGUF metadata with exactly n_vocab tokens.

    Keys, token types and padding are those of llama.cpp's converter (conversion/base.py:
    `_set_vocab_gpt2`, `_set_vocab_sentencepiece`, `_set_vocab_llama_hf`; gguf's SpecialVocab). As
    there, a SentencePiece tokenizer.model comes before tokenizer.json. A whole number is meant as
    uint32, those in a list as int32, floats in a list as float32. A key that the files say nothing
    about is absent.

    n_vocab: rows of the model's embedding. Raises ModelLoadError where the folder has no tokenizer
    that llama.cpp knows, or one that is malformed or larger than n_vocab.
    """
    if not 1 <= n_vocab <= MAX_VOCABULARY:
        raise ModelLoadError(
            f"{folder}: a vocabulary of {n_vocab}, expected 1 to {MAX_VOCABULARY}: check vocab_size"
        )
    settings = Settings(
        read_object(folder / "tokenizer_config.json", MAX_SETTINGS),
        read_object(folder / "config.json", MAX_SETTINGS) or {},
    )
    path = folder / "tokenizer.json"
    raw = read_object(path, MAX_TOKENIZER)
    pieces = sentencepiece.read_pieces(folder / "tokenizer.model", required=raw is None)
    if pieces is not None:
        outline = None if raw is None else read_outline(path, raw)
        special = special_metadata(outline, settings, n_vocab, known=sentencepiece.KNOWN)
        metadata = sentencepiece.metadata(folder, pieces, settings.tokenizer or {}, n_vocab)
    elif raw is not None:
        definition = read_definition(path, raw)
        special = special_metadata(definition, settings, n_vocab)
        if definition.model.get("byte_fallback") is True:
            metadata = spaced_bpe.metadata(definition, settings.tokenizer or {}, n_vocab)
        else:
            metadata = byte_level.metadata(definition, settings.tokenizer or {}, n_vocab)
    else:
        raise ModelLoadError(f"{folder}: no tokenizer.json or tokenizer.model{_others(folder)}")
    # the model's own keys come first, and win
    result = metadata | special | metadata
    if metadata["tokenizer.ggml.model"] == "gemma4" and "tokenizer.ggml.bos_token_id" not in result:
        raise ModelLoadError(f"{path}: no bos_token, with which llama.cpp begins such text")
    return result | chat_templates(folder, settings.tokenizer or {})


def _others(folder: Path) -> str:
    names = ("tekken.json", "tiktoken.model", "vocab.json")
    found = [name for name in names if (folder / name).exists()]
    return f"; save its {found[0]} as a tokenizer.json with transformers" if found else ""
