"""Every option and its default, once. Values are checked on construction and raise OptionError."""

import os
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Literal, get_args

from llamaspec.errors import OptionError

FlashAttention = Literal["auto", "on", "off"]
CacheType = Literal["f32", "f16", "bf16", "q8_0"]
Head = Literal["graph", "python"]
SplitMode = Literal["layer", "none", "row", "tensor"]

DEFAULT_CONTEXT = 4096
DEFAULT_BATCH = 512
DEFAULT_MAX_TOKENS = 256
ALL_LAYERS = -1
MAX_INT = 2**31 - 1
MAX_SEQUENCES = 256
"""llama.cpp's own limit."""
MAX_BATCH = 2**16


def usable_processors() -> int:
    """The logical processors this process may run on."""
    return len(_allowed()) or os.cpu_count() or 1


def _allowed() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def physical_cores() -> int:
    """The physical cores this process may run on: hyper-threads slow matrix products down."""
    cores = set()
    for cpu in _allowed():
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            return usable_processors()
    return len(cores) or usable_processors()


def _choice(name: str, value: str, kind: object) -> None:
    allowed = get_args(kind)
    if not isinstance(value, str) or value not in allowed:
        raise OptionError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def _whole(name: str, value: int, least: int, most: int | None = None) -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        range_ = f"of at least {least}" if most is None else f"in {least} to {most}"
        raise OptionError(f"{name} is {value!r}; it must be a whole number {range_}")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a pair.

    context: positions a sequence may use, prompt and completion together; 0: the model's own, at
    most 4096.
    n_gpu_layers, n_gpu_layers_draft: layers on the GPU, negative for all. threads: 0 for the
    physical cores.
    cache_type: type of the KV caches. head: where the Markov head runs. sequences: how many at
    once.
    device, device_draft: names of devices as doctor lists them, separated by commas, or "cpu"; None
    for all. split_mode: how the target is divided among several.
    exact: what plain decoding gives, token for token, at whatever cost.
    """

    context: int = 0
    n_gpu_layers: int = ALL_LAYERS
    n_gpu_layers_draft: int = ALL_LAYERS
    threads: int = 0
    batch: int = DEFAULT_BATCH
    flash_attention: FlashAttention = "auto"
    cache_type: CacheType = "f16"
    head: Head = "graph"
    sequences: int = 1
    device: str | None = None
    device_draft: str | None = None
    split_mode: SplitMode = "layer"
    exact: bool = False

    def __post_init__(self) -> None:
        _whole("context", self.context, 0, MAX_INT)
        _whole("n_gpu_layers", self.n_gpu_layers, -MAX_INT, MAX_INT)
        _whole("n_gpu_layers_draft", self.n_gpu_layers_draft, -MAX_INT, MAX_INT)
        _whole("threads", self.threads, 0)
        _whole("batch", self.batch, 32, MAX_BATCH)
        _whole("sequences", self.sequences, 1, MAX_SEQUENCES)
        if self.sequences * self.context > MAX_INT:
            raise OptionError(
                f"{self.sequences} sequences of {self.context} positions are more than {MAX_INT}"
            )
        _choice("flash_attention", self.flash_attention, FlashAttention)
        _choice("cache_type", self.cache_type, CacheType)
        _choice("head", self.head, Head)
        _choice("split_mode", self.split_mode, SplitMode)
        for name in ("device", "device_draft"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise OptionError(f"{name} is {value!r}; it must be the name of a device, or cpu")
        if not isinstance(self.exact, bool):
            raise OptionError(f"exact is {self.exact!r}; it must be True or False")
        if self.exact and self.sequences > 1:
            raise OptionError(
                f"exact is for one sequence at a time and sequences is {self.sequences}: several "
                "share a KV cache, whose order changes how sums round; choose one of them"
            )

    @property
    def n_threads(self) -> int:
        # threads wait by spinning: more of them than processors would all but stand still
        return min(self.threads, usable_processors()) or physical_cores()


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """How to generate one completion.

    max_tokens: most tokens to generate. temperature: 0 is greedy. seed: of the draws, None for a
    fresh one.
    stop: texts that end the completion, not part of it. draft_max: most proposals a round, 0 for
    plain decoding.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    draft_max: int | None = None

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1)
        if self.draft_max is not None:
            _whole("draft_max", self.draft_max, 0)
        if self.seed is not None:
            _whole("seed", self.seed, 0, 2**32 - 1)
        number = isinstance(self.temperature, Real) and not isinstance(self.temperature, bool)
        # a NaN is in no range; logits divided by a denormal number are infinite
        if not number or not (self.temperature == 0 or 1e-6 <= self.temperature <= 100):
            raise OptionError(
                f"temperature is {self.temperature!r}; it must be 0 or lie in 0.000001 to 100"
            )
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise OptionError(f"stop is {self.stop!r}; every stop text must be a non-empty string")
