"""Every option and its default, once. Values are checked on construction and raise OptionError."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal, Self, TypedDict, get_args

from llamaspec.constraint import check_grammar, is_c_text, schema_text
from llamaspec.endpoints import Endpoint, endpoints
from llamaspec.errors import OptionError
from llamaspec.processors import physical_cores, usable_processors

FlashAttention = Literal["auto", "on", "off"]
CacheType = Literal["f32", "f16", "bf16", "q8_0"]
Head = Literal["auto", "graph", "native", "python"]
Schedule = Literal["auto", "full"] | float
SplitMode = Literal["layer", "none", "row", "tensor"]
Acceptance = Literal["match", "residual", "block"]

DEFAULT_CONTEXT = 4096
DEFAULT_BATCH = 512
DEFAULT_MAX_TOKENS = 256
DEFAULT_QUEUE = 256
DEFAULT_PREFIX_CACHE = 256 * 2**20
"""Bytes, where several texts run at once."""
ALL_LAYERS = -1
MAX_INT = 2**31 - 1
MAX_SEQUENCES = 256
"""llama.cpp's own limit."""
MAX_BATCH = 2**16
MAX_SEED = 2**32 - 2
MAX_LOGPROBS = 100
MAX_BIAS = 10_000


def _choice(name: str, value: str, kind: object) -> None:
    allowed = get_args(kind)
    if not isinstance(value, str) or value not in allowed:
        raise OptionError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def _truth(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}; it must be True or False")


def _whole(name: str, value: int, least: int, most: int | None = None) -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        range_ = f"of at least {least}" if most is None else f"in {least} to {most}"
        raise OptionError(f"{name} is {value!r}; it must be a whole number {range_}")


def _real(name: str, value: float, least: float, most: float, also: str = "") -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    # a NaN is in no range
    if not number or not least <= value <= most:
        raise OptionError(
            f"{name} is {value!r}; it must {also}lie in {_plain(least)} to {_plain(most)}"
        )


def _schedule(value: Schedule) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if value in ("auto", "full") or (number and 0 < float(value) < 1):
        return
    raise OptionError(f"schedule is {value!r}; it must be auto, full or a number between 0 and 1")


def _plain(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def _texts(name: str, values: tuple[str, ...]) -> None:
    for text in values:
        if not isinstance(text, str) or not text:
            raise OptionError(f"{name} is {values!r}; every text in it must be a non-empty string")


def _biases(biases: Mapping[int, float]) -> dict[int, float]:
    if not isinstance(biases, Mapping):
        raise OptionError(f"logit_bias is {biases!r}; it must map token ids to numbers")
    for token, bias in biases.items():
        _whole("a token of logit_bias", token, 0, MAX_INT)
        if not (isinstance(bias, Real) and bias == -math.inf):
            _real(f"logit_bias of token {token}", bias, -MAX_BIAS, MAX_BIAS, "be -inf or ")
    return {int(token): float(bias) for token, bias in biases.items()}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a pair.

    context: positions a sequence may use, prompt and completion together; 0: the model's own, at
    most 4096.
    n_gpu_layers, n_gpu_layers_draft: layers on the GPU, negative for all. threads: 0 for the
    physical cores.
    cache_type: type of the KV caches. max_sequences: how many texts at once. queue: how many more
    may wait for a place.
    head: where the Markov head runs: "native" is llamaspec's own code on the CPU, which reads a
    vanilla head's weights in host memory; "auto" is that where it can be, and the draft's graph
    otherwise.
    device, device_draft: names of devices as doctor lists them, separated by commas, or "cpu"; None
    for all. split_mode: how the target is divided among several.
    rpc: llama.cpp's RPC servers, HOST:PORT separated by commas, that compute the target's layers.
    exact: what plain decoding gives, token for token, at whatever cost.
    prefix_cache: bytes of memory for texts, with what was computed of them, that had to leave their
    place to others; 0 for none, None for 256 MiB where max_sequences is more than 1.
    lookup: beside a block draft, look the end of the text up in what came before; a long match wins
    the round.
    cost_curve: file of `llamaspec bench cost` with what passes cost; None to measure it, which
    takes two seconds at most, for several sequences five, and is remembered.
    schedule: how many proposals are drafted and verified where a request leaves it open. "auto":
    as many as pay; "full": whole blocks; a number between 0 and 1: whole blocks are drafted, and
    verified up to the first proposal of which the draft is less sure.
    fit: take context (0: the model's own, which it never goes beyond) and max_sequences as the
    most, and choose what fits the free memory of the devices.
    """

    context: int = 0
    n_gpu_layers: int = ALL_LAYERS
    n_gpu_layers_draft: int = ALL_LAYERS
    threads: int = 0
    batch: int = DEFAULT_BATCH
    flash_attention: FlashAttention = "auto"
    cache_type: CacheType = "f16"
    head: Head = "auto"
    max_sequences: int = 1
    queue: int = DEFAULT_QUEUE
    device: str | None = None
    device_draft: str | None = None
    split_mode: SplitMode = "layer"
    rpc: str | None = None
    exact: bool = False
    lookup: bool = False
    cost_curve: str | None = None
    schedule: Schedule = "auto"
    prefix_cache: int | None = None
    fit: bool = False

    def __post_init__(self) -> None:
        _whole("context", self.context, 0, MAX_INT)
        _whole("n_gpu_layers", self.n_gpu_layers, -MAX_INT, MAX_INT)
        _whole("n_gpu_layers_draft", self.n_gpu_layers_draft, -MAX_INT, MAX_INT)
        _whole("threads", self.threads, 0)
        _whole("batch", self.batch, 32, MAX_BATCH)
        _whole("queue", self.queue, 0, MAX_INT)
        _whole("max_sequences", self.max_sequences, 1, MAX_SEQUENCES)
        if self.prefix_cache is not None:
            _whole("prefix_cache", self.prefix_cache, 0)
        if self.max_sequences * self.context > MAX_INT:
            raise OptionError(
                f"{self.max_sequences} sequences of {self.context} positions are more than "
                f"{MAX_INT}"
            )
        _choice("flash_attention", self.flash_attention, FlashAttention)
        _choice("cache_type", self.cache_type, CacheType)
        _choice("head", self.head, Head)
        _choice("split_mode", self.split_mode, SplitMode)
        for name in ("device", "device_draft"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise OptionError(f"{name} is {value!r}; it must be the name of a device, or cpu")
        self._check_rpc()
        if self.cost_curve is not None and not (
            isinstance(self.cost_curve, str) and is_c_text(self.cost_curve) and self.cost_curve
        ):
            raise OptionError(f"cost_curve is {self.cost_curve!r}; it must be the path of a file")
        _schedule(self.schedule)
        _truth("exact", self.exact)
        _truth("lookup", self.lookup)
        _truth("fit", self.fit)

    @property
    def n_prefix_cache(self) -> int:
        """The bytes of `prefix_cache`."""
        if self.prefix_cache is not None:
            return self.prefix_cache
        return DEFAULT_PREFIX_CACHE if self.max_sequences > 1 else 0

    @property
    def servers(self) -> tuple[Endpoint, ...]:
        """The addresses in `rpc`."""
        return () if self.rpc is None else endpoints("rpc", self.rpc)

    def _check_rpc(self) -> None:
        if not self.servers:
            return
        on_cpu = self.device is not None and self.device.strip().lower() == "cpu"
        if self.n_gpu_layers == 0 or on_cpu:
            here = "device is cpu" if on_cpu else "n_gpu_layers is 0"
            raise OptionError(
                f"rpc is {self.rpc} and {here}, which leaves no layer to the servers; give one of "
                "them"
            )
        if self.split_mode in ("row", "tensor"):
            raise OptionError(
                f"split_mode is {self.split_mode} and rpc {self.rpc}: matrices are not divided "
                "over a network; use split_mode layer"
            )

    @property
    def n_threads(self) -> int:
        # threads wait by spinning: more of them than processors would all but stand still
        return min(self.threads, usable_processors()) or physical_cores()


class GenerateSettings(TypedDict, total=False):
    """The fields of GenerateOptions, for giving them by name."""

    max_tokens: int
    temperature: float
    seed: int | None
    stop: str | Sequence[str]
    draft_max: int | None
    accept: Acceptance
    logprobs: int | None
    cache_prompt: bool
    priority: int
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: str | Sequence[str]
    logit_bias: Mapping[int, float]
    grammar: str | None
    json_schema: str | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """How to generate one completion. The defaults leave the model's own distribution as it is.

    max_tokens: most tokens to generate. temperature: 0 is greedy. seed: of the draws, None for a
    fresh one.
    stop: texts that end the completion, not part of it. draft_max: most proposals a round, 0 for
    plain decoding, None for as many as pay.
    accept: how proposals are accepted at a temperature. "match": the target draws, and a proposal
    that equals the draw is accepted; a seed gives the text it gives without the draft. "residual",
    "block": the draft samples too and more is accepted; texts are distributed as without the draft,
    but a seed gives another one, for which blocks are verified whole unless draft_max says less.
    logprobs: None for none; otherwise every token comes with its log-probability and those of so
    many likeliest alternatives, by the model's own distribution: temperature 1, before all that
    follows here.
    cache_prompt: do not compute again what the caches still hold of an earlier prompt and its
    completion that begin alike; False to start cold, for instance to measure.
    priority: the higher goes first where requests wait for a place, but none waits for ever.

    top_k: the likeliest k only, 0 for all. top_p: the likeliest that make up p. min_p: what has at
    least p of the likeliest one's probability. typical_p: locally typical ones that make up p.
    repeat_penalty: factor on tokens seen in the last repeat_last_n, prompt included;
    presence_penalty, frequency_penalty: subtracted from them once, and once for each time.
    dry_multiplier: of the penalty on tokens that go on with a repetition, 0 for none; it grows by
    dry_base with each token beyond dry_allowed_length, looks back over dry_penalty_last_n, and no
    repetition reaches over a text of dry_sequence_breakers. (-1 looks back over everything.)
    logit_bias: token id to what is added to its logit; -inf excludes it.
    grammar: GBNF with a rule "root" that the text follows. json_schema: the same from a schema, as
    a mapping or as JSON text.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    draft_max: int | None = None
    accept: Acceptance = "match"
    logprobs: int | None = None
    cache_prompt: bool = True
    priority: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str | None = None
    json_schema: str | None = None

    @classmethod
    def of(cls, settings: GenerateSettings) -> Self:
        """Make options of settings by name. Raises OptionError for an unknown name or a value out
        of range.
        """
        known = [item.name for item in fields(cls)]
        unknown = sorted(settings.keys() - set(known))
        if unknown:
            raise OptionError(f"unknown option {unknown[0]!r}; known are {', '.join(known)}")
        given: dict[str, Any] = dict(settings)
        for name in given.keys() & {"stop", "dry_sequence_breakers"}:
            texts = given[name]
            given[name] = tuple(texts) if isinstance(texts, list | tuple) else (texts,)
        return cls(**given)

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1)
        if self.draft_max is not None:
            _whole("draft_max", self.draft_max, 0)
        _choice("accept", self.accept, Acceptance)
        if self.seed is not None:
            # llama.cpp takes the largest number for "any"
            _whole("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _truth("cache_prompt", self.cache_prompt)
        _whole("priority", self.priority, -MAX_INT, MAX_INT)
        # logits divided by a denormal number are infinite
        if self.temperature != 0 or isinstance(self.temperature, bool):
            _real("temperature", self.temperature, 1e-6, 100, "be 0 or ")
        _texts("stop", self.stop)
        self._check_filters()
        self._check_penalties()
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        self._check_grammar()

    @property
    def has_penalties(self) -> bool:
        """Whether tokens seen before are penalised."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        )

    @property
    def has_grammar(self) -> bool:
        """Whether the text has to follow a grammar or schema."""
        return self.grammar is not None or self.json_schema is not None

    def _check_filters(self) -> None:
        _whole("top_k", self.top_k, 0, MAX_INT)
        _real("top_p", self.top_p, 0, 1)
        _real("min_p", self.min_p, 0, 1)
        _real("typical_p", self.typical_p, 0, 1)

    def _check_penalties(self) -> None:
        _real("repeat_penalty", self.repeat_penalty, 0.01, 100)
        _whole("repeat_last_n", self.repeat_last_n, -1, MAX_INT)
        _real("presence_penalty", self.presence_penalty, -100, 100)
        _real("frequency_penalty", self.frequency_penalty, -100, 100)
        _real("dry_multiplier", self.dry_multiplier, 0, 100)
        _real("dry_base", self.dry_base, 1, 100)
        _whole("dry_allowed_length", self.dry_allowed_length, 1, MAX_INT)
        _whole("dry_penalty_last_n", self.dry_penalty_last_n, -1, MAX_INT)
        _texts("dry_sequence_breakers", self.dry_sequence_breakers)
        if not all(is_c_text(text) for text in self.dry_sequence_breakers):
            raise OptionError("dry_sequence_breakers have a NUL or a lone surrogate; leave it out")

    def _check_grammar(self) -> None:
        if self.grammar is not None:
            if self.json_schema is not None:
                raise OptionError("grammar and json_schema exclude each other; give one of them")
            check_grammar(self.grammar)
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", schema_text(self.json_schema))
