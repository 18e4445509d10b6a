"""Writes converted.json: what llama.cpp's own converter makes of every miniature checkpoint.

By hand, after a change to tests/checkpoints or to the pinned llama.cpp, in a throw-away virtual
environment, from the repository root:

    pip install torch transformers==4.57.6 sentencepiece protobuf numpy gguf jinja2
    python -m tests.data.expected --llama-cpp DIR --shared DIR

(with the transformers that llama.cpp pins: it fills configs with its defaults, which differ by
version). `--llama-cpp` is a pristine llama.cpp tree, `--shared` the folder with the trained pair.
Each case
of tests.checkpoints.CASES, and each trained draft, is one object of the file:

    name, packaging, variation   how tests.checkpoints writes it (packaging "trained": from shared)
    files       SHA-256 of the written draft and target folders (tests.checkpoints.digest)
    refused     what the converter said instead of converting, or
    outtypes    f32 and bf16, each with
      keys      dflash.* and the mask id: [GGUF value type, value]; arrays as "ARRAY:<item type>"
      tensors   [GGUF type, shape in NumPy's order, SHA-256 of the bytes]
    dequantized where tensors come out quantised whatever the outtype: the same tensors in float32,
                computed by llama.cpp's Python, NVFP4 with its per-tensor scale multiplied in last;
                hashed after adding 0.0, because it has lost the sign of zeros

Three things are patched in the converter while it runs, none of which touches what is recorded: the
recognition of the tokenizer (by a hash of real vocabularies), Gemma's and DeepSeek's demands on
their own tokenizers, and, for `dequantized`, the choice of Q8_0 for tensors that were FP8.
"""

import argparse
import hashlib
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.checkpoints import CASES, Pair, digest

HERE = Path(__file__).resolve().parent
TRAINED = ("tiny-dspark", "tiny-dflash", "tiny-dspark-speculators")
PACKED = ("MXFP4", "NVFP4", "Q8_0")
OUTTYPES = ("f32", "bf16")


def main() -> None:
    """Convert everything and write converted.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--shared", type=Path, required=True)
    arguments = parser.parse_args()
    tree: Path = arguments.llama_cpp
    sys.path[:0] = [str(tree), str(tree / "gguf-py")]
    cases = []
    with tempfile.TemporaryDirectory() as scratch, _tokenizers_as_they_come():
        for case in CASES:
            pair = case.write(Path(scratch) / case.name)
            cases.append(
                {
                    "name": case.name,
                    "packaging": case.packaging,
                    "variation": dict(case.variation),
                    "files": {"draft": digest(pair.draft), "target": digest(pair.target)},
                    **_outcome(pair, Path(scratch)),
                }
            )
        models = arguments.shared / "models"
        for name in TRAINED:
            pair = Pair(models / name, models / "tiny-target")
            about = {"name": name, "packaging": "trained", "variation": {}}
            cases.append(about | _outcome(pair, Path(scratch)))
    (HERE / "converted.json").write_text(_lines(cases), encoding="utf-8")


def _outcome(pair: Pair, scratch: Path) -> dict[str, Any]:
    out = scratch / "out.gguf"
    outtypes = {}
    for outtype in OUTTYPES:
        try:
            _convert(pair, outtype, out)
        except (ValueError, NotImplementedError) as error:
            return {"refused": str(error)}
        outtypes[outtype] = _recorded(out)
    quantised = [name for name, entry in outtypes["f32"]["tensors"].items() if entry[0] in PACKED]
    if not quantised:
        return {"outtypes": outtypes}
    with _nothing_forced():
        _convert(pair, "f32", out)
    return {"outtypes": outtypes, "dequantized": _dequantized(out, quantised)}


def _convert(pair: Pair, outtype: str, out: Path) -> None:
    command = ["convert_hf_to_gguf.py", str(pair.draft), "--outtype", outtype]
    command += ["--target-model-dir", str(pair.target), "--outfile", str(out)]
    if pair.draft == pair.target:
        command.append("--dspark")
    converter = importlib.import_module("convert_hf_to_gguf")
    with mock.patch.object(sys, "argv", command):
        converter.main()


def _recorded(path: Path) -> dict[str, Any]:
    gguf = importlib.import_module("gguf")
    reader = gguf.GGUFReader(path)
    keys = {
        key: _typed(field)
        for key, field in sorted(reader.fields.items())
        if key.startswith("dflash.") or key == "tokenizer.ggml.mask_token_id"
    }
    tensors = {tensor.name: _entry(tensor) for tensor in sorted(reader.tensors)}
    return {"keys": keys, "tensors": tensors}


def _typed(field: Any) -> list[Any]:  # noqa: ANN401
    kinds = [kind.name for kind in field.types]
    return [":".join(kinds), field.contents()]


def _entry(tensor: Any) -> list[Any]:  # noqa: ANN401
    shape = [int(n) for n in reversed(tensor.shape)]
    return [tensor.tensor_type.name, shape, hashlib.sha256(tensor.data.tobytes()).hexdigest()]


def _dequantized(path: Path, names: list[str]) -> dict[str, Any]:
    gguf = importlib.import_module("gguf")
    numpy = importlib.import_module("numpy")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    entries = {}
    for name in names:
        tensor = tensors[name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        scale = tensors.get(name.removesuffix(".weight") + ".scale")
        if scale is not None:
            values = values * scale.data
        shape = [int(n) for n in reversed(tensor.shape)]
        unsigned_zeros = values + numpy.float32(0)
        entries[name] = ["F32", shape, hashlib.sha256(unsigned_zeros.tobytes()).hexdigest()]
    return entries


@contextmanager
def _tokenizers_as_they_come() -> Iterator[None]:
    base = importlib.import_module("conversion.base")
    gemma = importlib.import_module("conversion.gemma")

    def qwen2(self: object, tokenizer: object) -> str:
        return "qwen2"

    with (
        mock.patch.object(base.TextModel, "get_vocab_base_pre", qwen2),
        mock.patch.object(gemma.Gemma4Model, "set_vocab", base.TextModel._set_vocab_gpt2),
    ):
        yield


@contextmanager
def _nothing_forced() -> Iterator[None]:
    deepseek = importlib.import_module("conversion.deepseek")
    with mock.patch.object(deepseek.DeepseekV4Model, "tensor_force_quant", return_value=False):
        yield


def _lines(cases: list[dict[str, Any]]) -> str:
    """JSON with a line for each key and tensor, so that a change shows what changed."""
    return "[\n" + ",\n".join(_object(case, 0) for case in cases) + "\n]\n"


def _object(value: dict[str, Any], depth: int) -> str:
    pad = " " * (depth + 1)
    parts = [
        f"{pad}{json.dumps(key)}: "
        + (
            _object(item, depth + 1)
            if isinstance(item, dict) and item and key != "variation"
            else json.dumps(item, separators=(",", ":"))
        )
        for key, item in value.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n" + " " * depth + "}"


if __name__ == "__main__":
    main()
