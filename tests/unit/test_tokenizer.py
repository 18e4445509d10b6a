"""read_tokenizer writes what llama.cpp's converter writes, kind by kind.

tests/data/tokenizers.json has small tokenizers, trained for it, with what llama.cpp's own converter
made of each folder (long arrays as digests), and the ids that the tokenizers and sentencepiece
packages give for its texts.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest

from llamaspec.convert.tokenizer import read_tokenizer
from tests.conftest import ROOT

LONG = 50


@cache
def recorded() -> dict[str, Any]:
    text = (ROOT / "tests" / "data" / "tokenizers.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def byte_level(document: Mapping[str, Any], *, ignore_merges: bool = False) -> dict[str, Any]:
    """A tokenizer.json with the recorded vocabulary and the rest of `document`."""
    base = recorded()["byte_level"]
    model = {"type": "BPE", "byte_fallback": False, "ignore_merges": ignore_merges}
    vocabulary = {text: token for token, text in enumerate(base["vocab"])}
    return {**document, "model": model | {"vocab": vocabulary, "merges": base["merges"]}}


def write_folder(folder: Path, files: Mapping[str, Any]) -> Path:
    """A checkpoint folder: text, bytes, or anything else as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        if isinstance(value, bytes):
            (folder / name).write_bytes(value)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def kind_folder(folder: Path, kind: str, **files: Any) -> Path:  # noqa: ANN401
    """A folder with the recorded tokenizer of a pre-tokenizer's name."""
    case = recorded()["kinds"][kind]
    document = byte_level(case["document"], ignore_merges=case["ignore_merges"])
    return write_folder(folder, {"tokenizer.json": document} | files)


def spaced_folder(folder: Path, name: str) -> Path:
    """A folder with a recorded tokenizer in which a space is U+2581."""
    case = recorded()["spaced"][name]
    files = dict(case["files"])
    if "model" in case:
        files["tokenizer.model"] = base64.b64decode(case["model"])
    return write_folder(folder, files)


def shortened(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with long arrays as digests, as they are recorded."""
    return {
        key: hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
        if isinstance(value, list) and len(value) > LONG
        else value
        for key, value in metadata.items()
    }


def test_the_tiny_target_is_as_its_gguf(shared: Path) -> None:
    reader = gguf.GGUFReader(shared / "models" / "gguf" / "tiny-target-f32.gguf")
    wanted = {k: f.contents() for k, f in reader.fields.items() if k.startswith("tokenizer.")}
    found = read_tokenizer(shared / "models" / "tiny-target", 4096)
    assert found == wanted
    for key, value in found.items():
        kind = reader.fields[key].types[-1].name
        item = value[0] if isinstance(value, list) else value
        expected = "INT32" if isinstance(value, list) else "UINT32"
        assert kind == {bool: "BOOL", str: "STRING", int: expected}[type(item)], key


@pytest.mark.parametrize("name", "abcefghij")
def test_byte_level_is_as_the_converter_writes_it(name: str, tmp_path: Path) -> None:
    case = recorded()["converter"][name]
    document = byte_level(case["document"], ignore_merges=case["ignore_merges"])
    files = {"tokenizer.json": document} | case["files"]
    if case["jinja"] is not None:
        files["chat_template.jinja"] = case["jinja"]
    found = shortened(read_tokenizer(write_folder(tmp_path, files), case["n_vocab"]))
    # the converter's name comes from a list of hashes of published tokenizers
    del found["tokenizer.ggml.pre"]
    assert found == case["metadata"]


@pytest.mark.parametrize("name", ["llama", "llama_bare", "gemma", "uni", "gemma_json"])
def test_spaced_is_as_the_converter_writes_it(name: str, tmp_path: Path) -> None:
    case = recorded()["spaced"][name]
    found = read_tokenizer(spaced_folder(tmp_path, name), case["n_vocab"])
    assert shortened(found) == case["metadata"]


def test_llama_2_from_merges_has_scores_that_rank_as_they_do(tmp_path: Path) -> None:
    case = recorded()["spaced"]["llama_json"]
    found = read_tokenizer(spaced_folder(tmp_path, "llama_json"), case["n_vocab"])
    scores, tokens = found.pop("tokenizer.ggml.scores"), found["tokenizer.ggml.tokens"]
    # the converter gives each token -1000, by which llama.cpp merges from left to right
    assert shortened(found) == case["metadata"]
    by_text: dict[str, float] = dict(zip(tokens, scores, strict=True))  # type: ignore[arg-type]
    merged = ["".join(pair) for pair in case["files"]["tokenizer.json"]["model"]["merges"]]
    ranks = [by_text[text] for text in dict.fromkeys(merged)]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)


@pytest.mark.parametrize("kind", sorted(recorded()["kinds"]))
def test_the_pre_tokenizer_is_told_by_its_steps(kind: str, tmp_path: Path) -> None:
    assert read_tokenizer(kind_folder(tmp_path, kind), 1000)["tokenizer.ggml.pre"] == kind


def test_padding_fills_up_to_the_rows_of_the_model(tmp_path: Path) -> None:
    found = read_tokenizer(kind_folder(tmp_path, "qwen2"), 910)
    assert list(found["tokenizer.ggml.tokens"])[902:906] == [  # type: ignore[arg-type]
        "<|im_end|>",
        "<tool>",
        "[PAD904]",
        "[PAD905]",
    ]
    types = found["tokenizer.ggml.token_type"]
    assert isinstance(types, list)
    assert types[899:906] == [1, 3, 3, 3, 4, 5, 5]
    assert len(types) == 910


def test_no_token_is_added_that_nothing_names(tmp_path: Path) -> None:
    settings = {"add_bos_token": True, "add_eos_token": True, "eos_token": "<|im_end|>"}
    folder = kind_folder(tmp_path, "qwen2", **{"tokenizer_config.json": settings})
    found = read_tokenizer(folder, 1000)
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert found["tokenizer.ggml.add_eos_token"] is True
    assert "tokenizer.ggml.bos_token_id" not in found


def test_sentencepiece_needs_no_ids_to_begin_with(tmp_path: Path) -> None:
    folder = spaced_folder(tmp_path, "llama_bare")
    settings = {"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>"}
    write_folder(folder, {"tokenizer_config.json": settings, "config.json": {}})
    found = read_tokenizer(folder, 1000)
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert found["tokenizer.ggml.add_eos_token"] is True


def test_a_role_makes_a_token_a_control_token(tmp_path: Path) -> None:
    settings = {"eos_token": "<tool>", "pad_token": {"content": "!"}}
    folder = kind_folder(tmp_path, "qwen2", **{"tokenizer_config.json": settings})
    types = read_tokenizer(folder, 1000)["tokenizer.ggml.token_type"]
    assert isinstance(types, list)
    assert (types[0], types[1], types[903]) == (3, 1, 3)


def test_an_added_token_in_the_alphabet_of_bytes_is_text_where_it_can_be(tmp_path: Path) -> None:
    case = recorded()["kinds"]["qwen2"]
    document = byte_level(case["document"])
    more = [("\u0120xy", 904), ("caf\xe9", 905), ("na\xc3\xafve", 906)]
    document["added_tokens"] = [
        *document["added_tokens"],
        *({"id": token, "content": text, "normalized": False} for text, token in more),
    ]
    found = read_tokenizer(write_folder(tmp_path, {"tokenizer.json": document}), 907)
    assert list(found["tokenizer.ggml.tokens"])[904:] == [  # type: ignore[arg-type]
        " xy",
        "caf\xe9",
        "na\xefve",
    ]


def test_further_chat_templates_have_keys_of_their_own(tmp_path: Path) -> None:
    folder = kind_folder(tmp_path, "qwen2", **{"chat_template.jinja": "main"})
    more = {"tool-use.jinja": "tools", "rag.jinja": "documents"}
    write_folder(folder / "additional_chat_templates", more)
    found = read_tokenizer(folder, 1000)
    assert {k: v for k, v in found.items() if "chat_template" in k} == {
        "tokenizer.chat_template": "main",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_template.rag": "documents",
        "tokenizer.chat_templates": ["rag", "tool_use"],
    }


def test_code_of_the_checkpoint_is_not_run(tmp_path: Path) -> None:
    trap = "import pathlib\npathlib.Path('ran').touch()\nraise SystemExit\n"
    settings = {"auto_map": {"AutoTokenizer": ["tokenization_x.X", None]}}
    files = {"tokenizer_config.json": settings, "tokenization_x.py": trap}
    folder = kind_folder(tmp_path, "qwen2", **files)
    assert read_tokenizer(folder, 1000)["tokenizer.ggml.model"] == "gpt2"
    assert not Path("ran").exists()


def test_another_vocabulary_named_tokenizer_model_is_passed_over(tmp_path: Path) -> None:
    ranks = b"IQ== 0\nIg== 1\nIw== 2\nJA== 3\n"
    folder = kind_folder(tmp_path, "llama-bpe", **{"tokenizer.model": ranks})
    assert read_tokenizer(folder, 1000)["tokenizer.ggml.pre"] == "llama-bpe"
