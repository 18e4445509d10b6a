"""Names of the quantisation types, and what of a draft is kept out of quantisation."""

import re
from collections.abc import Mapping

from llamaspec.errors import OptionError
from llamaspec.runtime.gguf_types import TensorInfo

_NAMES = """
Q1_0 Q2_0 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 TQ1_0 TQ2_0 MXFP4_MOE IQ3_S IQ3_M IQ4_XS IQ4_NL
Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K F16 BF16 F32
"""
TYPES = tuple(_NAMES.split())
"""What `quantize` writes, under the names that llama-quantize has for them."""
# llama.cpp gives some tensor of these a type that it does not compute without a matrix
_NEED_MATRIX = (
    "IQ1_S",
    "IQ1_M",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ2_M",
    "IQ3_XXS",
    "IQ3_XS",
    "Q2_K_S",
)
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_PLAIN = frozenset({"F64", "F32", "F16", "BF16", "I8", "I16", "I32", "I64"})
_BLOCK = 32
_SIXTEEN_BITS = re.compile(
    r"(?:fc|conf_proj|selector_hidden|markov_(?:gate|joint)\w*|blk\.\d+\.(?:attn|ffn)_conv_proj)"
    r"\.weight"
)


def file_type(name: str) -> str:
    """The canonical name of a type, whatever its case: "q4_k" is "Q4_K_M".

    Raises:
        OptionError: there is no such type, or it takes an importance matrix.
    """
    wanted = name.strip().upper()
    wanted = _ALIASES.get(wanted, wanted)
    if wanted in _NEED_MATRIX:
        raise OptionError(
            f"{name} needs an importance matrix, which llamaspec does not compute; "
            "take IQ3_S, Q2_K or a larger type, or llama.cpp's own llama-quantize --imatrix"
        )
    if wanted not in TYPES:
        raise OptionError(
            f"type {name!r} is unknown; the types are {', '.join((*TYPES, *_ALIASES))}"
        )
    return wanted


def is_quantised(type_name: str) -> bool:
    """Whether a tensor of that type is stored in quantised blocks."""
    return type_name not in _PLAIN


def least_bits(name: str) -> int:
    """How many bits an element of a draft's tensor keeps at least; 0: as many as are asked for.

    The features' way into the draft and the small projections that steer its head keep 16, the
    Markov matrices 8: with q4_0 there, the tiny pair's tau fell from 4.28 to 4.04.
    """
    if _SIXTEEN_BITS.fullmatch(name):
        return 16
    return 8 if name in ("markov_w1.weight", "markov_w2.weight") else 0


def kept_types(tensors: Mapping[str, TensorInfo], wanted: str) -> dict[str, str]:
    """A draft's tensors that stay above the wanted type, and the type of each.

    16 bits are F16, or BF16 where the tensor is that already.
    """
    kept = {}
    for name, info in tensors.items():
        sixteen = "BF16" if info.type == "BF16" else "F16"
        bits = least_bits(name)
        if bits == 8 and wanted not in (*_PLAIN, "Q8_0"):
            kept[name] = sixteen if info.shape[-1] % _BLOCK else "Q8_0"
        elif bits == 16:
            kept[name] = sixteen
    return kept
