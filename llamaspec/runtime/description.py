"""What a GGUF file is, read from its header: FileDescription, and DraftDescription for drafts."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llamaspec.errors import ModelLoadError
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.loader_limits import check_loader_limits, running_layers
from llamaspec.runtime.metadata import MAX_LAYERS, Keys

Kind = Literal["target", "draft", "other"]
HeadType = Literal["none", "vanilla", "gated", "rnn", "selector"]
Layout = Literal["anchor-first", "bonus-anchor"]

DRAFT_ARCHITECTURE = "dflash"
# What llama.cpp loads and llamaspec cannot continue a text with: embedders, encoders, diffusion,
# other methods' drafts, parts of models. A test derives the list from the sources.
_OTHERS = """
bert clip dream eagle3 eurobert gemma-embedding gemma4-assistant jina-bert-v2 jina-bert-v3 llada
llada-moe llama-embed modern-bert neo-bert nomic-bert nomic-bert-moe rnd1 t5 t5encoder
wavtokenizer-dec
"""
OTHER_ARCHITECTURES = frozenset(_OTHERS.split())
_OTHER_TYPES = frozenset({"adapter", "mmproj", "imatrix"})
_DEFAULT_DFLASH_BLOCK = 16
_OF_A_HEAD = re.compile(r"markov_|conf_proj\.|selector_|blk\.\d+\.(attn|ffn)_conv_")
_MAX_SOURCES = 4096
# by the number in general.file_type, under the name that llama-quantize knows
_FILE_TYPE_NAMES = """
F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K
IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M
BF16 - - - TQ1_0 TQ2_0 MXFP4_MOE NVFP4 Q1_0 Q2_0
"""
_FILE_TYPES = dict(enumerate(_FILE_TYPE_NAMES.split()))


@dataclass(frozen=True, slots=True)
class Selector:
    """Sizes of a DFlash2 draft, 0 where the file does not say: candidates of a position, rank of
    the selector, rows that a convolution reads, columns that share its coefficients.
    """

    top_k: int
    rank: int
    kernel: int
    group: int


@dataclass(frozen=True, slots=True)
class DraftDescription:
    """A block draft (DSpark or DFlash).

    Attributes:
        taps: target layers whose *input* the draft reads (checkpoint layer id + 1).
        block_size: trained slots of a block, anchor included; 0 where the file does not say.
        sample_from_anchor: slot 0, the anchor's, already predicts.
        head: how proposals are chained; "none" is DFlash, "selector" is DFlash2.
        markov_rank: columns of `markov_w1`; 0 without a Markov head.
        head_shapes: shapes of what a plain DFlash draft does not have, by name: `markov_*`,
            `conf_proj.*`, `selector_*`, and DFlash2's convolutions.
        selector: sizes of a DFlash2 draft, None for others.
        draft_vocabulary: rows of the draft's head, fewer than the target's with a `d2t`.
        target_vocabulary: vocabulary of the target that the draft was made for.
        d2t_range: smallest and largest target id in `d2t`; None for a full vocabulary.
        feature_width: columns of `fc`, taps x target width; 0 where there is no `fc`.
        own_embedding: brings `token_embd`; otherwise the target's is used.
        own_head: brings `output`; otherwise the target's is used.
        mask_token_id: token of the slots to fill, None where the file does not say.
        causal: attention inside the block is causal.
        rope_sections: has M-RoPE sections, which a draft for an M-RoPE target needs.
    """

    taps: tuple[int, ...]
    block_size: int
    sample_from_anchor: bool
    head: HeadType
    markov_rank: int
    head_shapes: Mapping[str, tuple[int, ...]]
    selector: Selector | None
    draft_vocabulary: int
    target_vocabulary: int
    d2t_range: tuple[int, int] | None
    feature_width: int
    own_embedding: bool
    own_head: bool
    mask_token_id: int | None
    causal: bool
    rope_sections: bool

    @property
    def layout(self) -> Layout:
        """Where the first proposal is: slot 0 ("anchor-first") or slot 1 ("bonus-anchor")."""
        return "anchor-first" if self.sample_from_anchor else "bonus-anchor"

    @property
    def first_row(self) -> int:
        """Slot of the first proposal, 0 or 1."""
        return 0 if self.sample_from_anchor else 1

    @property
    def proposals(self) -> int:
        """Most tokens that one block proposes."""
        return max(0, self.block_size - self.first_row)

    @property
    def has_confidence_head(self) -> bool:
        """Proposals come with an acceptance probability each."""
        return "conf_proj.weight" in self.head_shapes

    @property
    def method(self) -> str:
        """The published name of this kind of draft."""
        return {"none": "DFlash", "selector": "DFlash2"}.get(self.head, "DSpark")


@dataclass(frozen=True, slots=True)
class FileDescription:
    """One GGUF file, or all parts of a split one.

    Attributes:
        path: the file, or the first part.
        kind: "draft" for a block draft, "other" for what cannot generate text token by token.
        architecture: `general.architecture`.
        name: `general.name`, or the file's own name.
        quantisation: of the file as a whole ("Q4_K_M"), else its commonest tensor type.
        tensor_bytes: bytes by tensor type.
        n_params: weights in all tensors.
        size_bytes: of all parts.
        n_layer: layers that run, without next-token-prediction layers; loops unrolled.
        width: of the hidden state.
        n_vocab: rows of the vocabulary.
        context_length: positions that the model was trained for; 0 where not stated.
        tokenizer: kind and pre-tokenizer ("gpt2/qwen2"), "" where there is none.
        has_chat_template: the file brings one.
        tied: has no `output` of its own; the embedding serves as head.
        mrope: positions are multi-dimensional (M-RoPE).
        draft: details of a draft, else None.
        source: what `llamaspec convert` noted of where it came from: packaging, repository,
            revision, files with the beginning of their sha256.
    """

    path: Path
    kind: Kind
    architecture: str
    name: str
    quantisation: str
    tensor_bytes: Mapping[str, int]
    n_params: int
    size_bytes: int
    n_layer: int
    width: int
    n_vocab: int
    context_length: int
    tokenizer: str
    has_chat_template: bool
    tied: bool
    mrope: bool
    draft: DraftDescription | None = field(default=None)
    source: tuple[str, ...] = ()


def read_description(file: GGUFFile) -> FileDescription:
    """Describe an open file, and the other parts where it is split.

    Raises:
        ModelLoadError: a key has a wrong type, or a count that llama.cpp would abort on.
    """
    arch = file.architecture
    keys = Keys(file.path, file.metadata)
    kind = _kind(file, keys)
    if kind != "other":
        check_loader_limits(file, keys)
    tensor_bytes, n_params, size = _weigh(file)
    commonest = max(tensor_bytes, key=lambda name: tensor_bytes[name], default="")
    file_type = _FILE_TYPES.get(keys.integer("general.file_type", -1), "-")
    return FileDescription(
        path=file.path,
        kind=kind,
        architecture=arch,
        name=keys.text("general.name") or file.path.stem,
        quantisation=commonest if file_type == "-" else file_type,
        tensor_bytes=tensor_bytes,
        n_params=n_params,
        size_bytes=size,
        n_layer=running_layers(keys, arch),
        width=keys.integer(f"{arch}.embedding_length"),
        n_vocab=_vocabulary(file, keys),
        context_length=keys.integer(f"{arch}.context_length"),
        tokenizer="/".join(
            filter(None, (keys.text("tokenizer.ggml.model"), keys.text("tokenizer.ggml.pre")))
        ),
        has_chat_template=bool(keys.text("tokenizer.chat_template")),
        tied="output.weight" not in file.tensors,
        mrope=f"{arch}.rope.dimension_sections" in keys,
        draft=_read_draft(file, keys) if kind == "draft" else None,
        source=_source(keys),
    )


def _source(keys: Keys) -> tuple[str, ...]:
    named = (keys.text(f"llamaspec.source.{part}") for part in ("packaging", "repository"))
    revision = keys.text("llamaspec.source.revision")
    files = keys.strings("llamaspec.source.files", _MAX_SOURCES)
    digests = keys.strings("llamaspec.source.sha256", _MAX_SOURCES)
    listed = (f"{name} {digest[:16]}" for name, digest in zip(files, digests, strict=False))
    return (*filter(None, named), *([f"at {revision[:12]}"] if revision else []), *listed)


def _kind(file: GGUFFile, keys: Keys) -> Kind:
    if file.architecture == DRAFT_ARCHITECTURE:
        return "draft"
    other = file.architecture in OTHER_ARCHITECTURES or keys.text("general.type") in _OTHER_TYPES
    causal = keys.flag(f"{file.architecture}.attention.causal", default=True)
    return "target" if causal and file.tensors and not other else "other"


def _weigh(file: GGUFFile) -> tuple[dict[str, int], int, int]:
    by_type: Counter[str] = Counter()
    n_params = size = 0
    for part in file.parts:
        opened = file if part == file.path else GGUFFile.open(part, first_part=False)
        for info in opened.tensors.values():
            by_type[info.type] += info.nbytes
            n_params += info.n_elements
        size += part.stat().st_size
        if opened is not file:
            opened.close()
    return dict(by_type), n_params, size


def _vocabulary(file: GGUFFile, keys: Keys) -> int:
    tokens = keys.length("tokenizer.ggml.tokens")
    return tokens if tokens is not None else keys.integer(f"{file.architecture}.vocab_size")


def _read_draft(file: GGUFFile, keys: Keys) -> DraftDescription:
    shapes = {name: info.shape for name, info in file.tensors.items()}
    head = _head(file, keys)
    markov = shapes.get("markov_w1.weight", ())
    chained = head not in ("none", "selector")
    n_vocab = _vocabulary(file, keys)
    d2t = shapes.get("d2t")
    mask = keys.integer("tokenizer.ggml.mask_token_id", -1)
    return DraftDescription(
        taps=keys.integers("dflash.target_layers", MAX_LAYERS + 1),
        block_size=keys.integer("dflash.block_size", 0 if chained else _DEFAULT_DFLASH_BLOCK),
        # llama.cpp's selector always reads past slot 0; without the key, so does plain DFlash
        sample_from_anchor=head != "selector"
        and keys.flag("dflash.sample_from_anchor", default=chained),
        head=head,
        markov_rank=markov[-1] if markov else 0,
        head_shapes={name: shape for name, shape in shapes.items() if _OF_A_HEAD.match(name)},
        selector=_selector(keys) if head == "selector" else None,
        draft_vocabulary=n_vocab if d2t is None else d2t[0] if d2t else 0,
        target_vocabulary=n_vocab,
        d2t_range=None if d2t is None else _d2t_range(file),
        feature_width=shapes.get("fc.weight", (0,))[-1],
        own_embedding="token_embd.weight" in shapes,
        own_head="output.weight" in shapes,
        mask_token_id=mask if mask >= 0 else None,
        causal=keys.flag("dflash.attention.causal", default=False),
        rope_sections="dflash.rope.dimension_sections" in keys,
    )


def _selector(keys: Keys) -> Selector:
    names = ("selector_top_k", "selector_rank", "conv_kernel_size", "conv_group_size")
    return Selector(*(keys.integer(f"dflash.{name}") for name in names))


def _d2t_range(file: GGUFFile) -> tuple[int, int]:
    kind = file.tensors["d2t"].type
    if kind != "I64":
        raise ModelLoadError(
            f"{file.path}: d2t has type {kind}, llama.cpp takes I64 only; convert the draft again"
        )
    ids = file.integers("d2t")
    return (int(ids.min()), int(ids.max())) if ids.size else (0, -1)


def _head(file: GGUFFile, keys: Keys) -> HeadType:
    names = file.tensors
    if "selector_hidden.weight" in names or keys.integer("dflash.selector_top_k") > 0:
        return "selector"
    if "markov_w1.weight" not in names:
        return "none"
    by_tensor: HeadType = "vanilla"
    if any(name.startswith("markov_gate") for name in names):
        by_tensor = "gated"
    elif any(name.startswith("markov_joint") for name in names):
        by_tensor = "rnn"
    stated = keys.text("dflash.markov_head_type", by_tensor)
    if stated != by_tensor:
        raise ModelLoadError(
            f"{file.path}: dflash.markov_head_type is {stated!r}, "
            f"but its tensors make a {by_tensor} head"
        )
    return by_tensor
