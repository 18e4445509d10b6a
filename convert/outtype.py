"""Which GGUF type each tensor gets."""

from dataclasses import dataclass

from llamaspec.convert.weights import Weights
from llamaspec.errors import OptionError
from llamaspec.runtime.quantize_types import least_bits

FLOATS = ("f32", "f16", "bf16")
SIMPLE = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""Quantised types that the gguf package writes itself; others go through llama.cpp's quantiser."""
AUTO = "auto"
# llama.cpp's LLAMA_FTYPE, by type
FILE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "bf16": 32,
    "mxfp4": 38,
}
BLOCK = 32


@dataclass(frozen=True)
class OutType:
    """A wished type, as `--outtype` takes it.

    Attributes:
        name: lower case: auto, f32, f16, bf16, q8_0, ...
    """

    name: str

    @property
    def native(self) -> bool:
        """llama.cpp's quantiser must do it."""
        return self.name not in (AUTO, *FLOATS, *SIMPLE)

    def choose(self, name: str, weights: Weights) -> str:
        """The GGUF type of one tensor, upper case.

        Vectors and norms are F32, which is all that llama.cpp's graphs take of them; `d2t` is I64.
        Auto keeps what the source has. Quantised types leave `fc` and the small heads at 16 bits,
        and rows that are no whole blocks.
        """
        if weights.kind == "I64":
            return "I64"
        if len(weights.shape) < 2 or not _matrix(name):
            return "F32"
        if self.name == AUTO:
            return weights.auto or weights.kind
        if self.name == "f32":
            return "F32"
        if weights.kind == "MXFP4":
            return "MXFP4"  # experts: exact, and smaller than any wish that keeps them whole
        if self.name in FLOATS:
            return self.name.upper()
        sixteen = "F16" if weights.kind == "F16" else "BF16"
        routing = name.endswith("ffn_gate_inp.weight")
        if least_bits(name) == 16 or routing or weights.shape[-1] % BLOCK:
            return sixteen
        return "Q8_0" if least_bits(name) == 8 else self.name.upper()


def _matrix(name: str) -> bool:
    norm = name.endswith("_norm.weight")
    small = ("attn_sinks.weight", "layer_output_scale.weight", "rope_freqs.weight")
    streams = "hc_" in name  # of hyper-connections, tiny, and F32 wherever they are published
    return name.endswith(".weight") and not (norm or streams or name.endswith(small))


def read_outtype(name: str) -> OutType:
    """An `--outtype`, in any case; what is neither here nor llama.cpp's is refused there."""
    low = name.strip().lower()
    if not low or not low.replace("_", "").isalnum():
        raise OptionError(
            f"outtype {name!r} is no type; auto, f32, f16, bf16, q8_0, q4_k_m, ... are"
        )
    return OutType(low)


def file_type(types: list[tuple[str, int]]) -> int:
    """`general.file_type` of a file, from (type, bytes) of its tensors: that of most bytes."""
    weight: dict[str, int] = {}
    for kind, size in types:
        weight[kind.lower()] = weight.get(kind.lower(), 0) + size
    return FILE_TYPES.get(max(weight, key=lambda kind: weight[kind]), 0)
