"""DeepSeek-V4's embedded draft (mtp.*): hyper-connections, one shared K/V head, experts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reference.backbone import Rows
from tests.reference.checkpoint import Checkpoint, FloatArray, IntArray
from tests.reference.draft import Draft
from tests.reference.heads import make_head
from tests.reference.layers import Memory, Sight, attend, rms_norm, sigmoid, silu
from tests.reference.rope import Rope

_PARTS = (
    *(f"attn.{n}.weight" for n in ("wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "wo_a", "wo_b")),
    "attn.attn_sink",
    "attn_norm.weight",
    "ffn_norm.weight",
    "ffn.gate.weight",
    "ffn.gate.bias",
)


@dataclass(frozen=True)
class Facts:
    """Numbers that all stages share. rotated: how many last values of a head RoPE turns."""

    head_dim: int
    rotated: int
    rope: Rope
    groups: int
    streams: int
    eps: float
    mix_eps: float
    sinkhorn: int
    experts_used: int
    normalise: bool
    routed_scale: float
    limit: float
    sight: Sight

    def turn(self, x: FloatArray, position: IntArray) -> FloatArray:
        kept = self.head_dim - self.rotated
        turned = self.rope(x[..., kept:], position)
        return np.concatenate([x[..., :kept], turned], axis=-1)


@dataclass(frozen=True)
class Mixer:
    """Hyper-connections: s residual streams are mixed into one row, and back into s.

    fn [(2 + s) s, s d], base [(2 + s) s], scale [3] for the three parts: in, out, across.
    """

    fn: FloatArray
    base: FloatArray
    scale: FloatArray

    def __call__(self, facts: Facts, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of streams [L, s, d]: the row [L, d], weights out [L, s] and across [L, from, to]."""
        s = facts.streams
        read = rms_norm(x.reshape(len(x), -1), None, facts.eps) @ self.fn.T
        into, out, across = np.split(read, [s, 2 * s], axis=1)
        base = np.split(self.base, [s, 2 * s])
        into = sigmoid(into * self.scale[0] + base[0]) + np.float32(facts.mix_eps)
        out = 2 * sigmoid(out * self.scale[1] + base[1])
        across = (across * self.scale[2] + base[2]).reshape(-1, s, s)
        return (into[..., None] * x).sum(axis=1), out, _sinkhorn(across, facts)


def _sinkhorn(x: FloatArray, facts: Facts) -> FloatArray:
    """Towards rows and columns that sum to one: softmax over `to`, then by turns."""
    eps = np.float32(facts.mix_eps)
    x = np.exp(x - x.max(axis=2, keepdims=True))
    x = x / x.sum(axis=2, keepdims=True) + eps
    x = x / (x.sum(axis=1, keepdims=True) + eps)
    for _ in range(facts.sinkhorn - 1):
        x = x / (x.sum(axis=2, keepdims=True) + eps)
        x = x / (x.sum(axis=1, keepdims=True) + eps)
    return x


def _spread(y: FloatArray, x: FloatArray, out: FloatArray, across: FloatArray) -> FloatArray:
    """The streams after a part that gave y [L, d]."""
    return out[..., None] * y[:, None] + across.transpose(0, 2, 1) @ x


@dataclass(frozen=True)
class Expert:
    w1: FloatArray
    w2: FloatArray
    w3: FloatArray

    def __call__(self, x: FloatArray, limit: float) -> FloatArray:
        gate, up = x @ self.w1.T, x @ self.w3.T
        if limit > 0:
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return (silu(gate) * up) @ self.w2.T


@dataclass(frozen=True)
class Stage:
    """One layer; `part` reads its tensors by their names in the checkpoint."""

    part: dict[str, FloatArray]
    attn: Mixer
    ffn: Mixer
    experts: tuple[Expert, ...]
    shared: Expert

    def remember(self, facts: Facts, x: FloatArray, position: IntArray) -> Memory:
        part = self.part
        kv = rms_norm(x @ part["attn.wkv.weight"].T, part["attn.kv_norm.weight"], facts.eps)
        kv = facts.turn(kv[:, None], position)
        return Memory(position, kv, kv)

    def forward(self, facts: Facts, x: FloatArray, position: IntArray, past: Memory) -> FloatArray:
        """Streams [L, s, d] through the stage."""
        row, out, across = self.attn(facts, x)
        row = rms_norm(row, self.part["attn_norm.weight"], facts.eps)
        x = _spread(self._attention(facts, row, position, past), x, out, across)
        row, out, across = self.ffn(facts, x)
        row = rms_norm(row, self.part["ffn_norm.weight"], facts.eps)
        y = self._routed(facts, row) + self.shared(row, facts.limit)
        return _spread(y, x, out, across)

    def _attention(
        self, facts: Facts, x: FloatArray, position: IntArray, past: Memory
    ) -> FloatArray:
        part = self.part
        low = rms_norm(x @ part["attn.wq_a.weight"].T, part["attn.q_norm.weight"], facts.eps)
        queries = (low @ part["attn.wq_b.weight"].T).reshape(len(x), -1, facts.head_dim)
        queries = facts.turn(rms_norm(queries, None, facts.eps), position)
        memory = past + self.remember(facts, x, position)
        scale, sinks = facts.head_dim**-0.5, part["attn.attn_sink"]
        mixed = attend(queries, position, memory, facts.sight, scale, sinks)
        # values were turned along with the keys
        mixed = facts.turn(mixed.reshape(queries.shape), -position)
        grouped = mixed.reshape(len(x), facts.groups, -1).transpose(1, 2, 0)
        wo_a = part["attn.wo_a.weight"].reshape(facts.groups, -1, grouped.shape[1])
        low = (wo_a @ grouped).reshape(-1, len(x)).T
        return low @ part["attn.wo_b.weight"].T

    def _routed(self, facts: Facts, x: FloatArray) -> FloatArray:
        score = np.sqrt(np.logaddexp(0, x @ self.part["ffn.gate.weight"].T))
        # the bias chooses experts and does not weigh them
        order = np.argsort(-(score + self.part["ffn.gate.bias"]), axis=1, kind="stable")
        out = np.zeros_like(x)
        for i, chosen in enumerate(order[:, : facts.experts_used]):
            weight = score[i, chosen]
            if facts.normalise:
                weight = weight / max(weight.sum(), 2.0**-14)
            for w, j in zip(weight * facts.routed_scale, chosen, strict=True):
                out[i] += np.float32(w) * self.experts[j](x[i], facts.limit)
        return out


@dataclass(frozen=True)
class DeepSeek4Backbone:
    """The heads read the streams' mix before the last norm, the output matrix reads it after."""

    facts: Facts
    stages: tuple[Stage, ...]
    fc: FloatArray
    fc_norm: FloatArray
    norm: FloatArray
    last: Mixer
    embedding: FloatArray
    head: FloatArray

    def context(self, features: FloatArray, position: IntArray) -> list[Memory]:
        fused = rms_norm(features @ self.fc.T, self.fc_norm, self.facts.eps)
        return [stage.remember(self.facts, fused, position) for stage in self.stages]

    def rows(self, context: list[Memory], ids: IntArray, position: IntArray) -> Rows:
        x = np.repeat(self.embedding[ids][:, None], self.facts.streams, axis=1)
        for stage, past in zip(self.stages, context, strict=True):
            x = stage.forward(self.facts, x, position, past)
        read = rms_norm(x.reshape(len(x), -1), None, self.facts.eps) @ self.last.fn.T
        into = sigmoid(read * self.last.scale + self.last.base) + np.float32(self.facts.mix_eps)
        hidden = (into[..., None] * x).sum(axis=1)
        return Rows(rms_norm(hidden, self.norm, self.facts.eps) @ self.head.T, hidden)


def load(
    draft: Checkpoint, settings: dict[str, Any], embedding: FloatArray, head: FloatArray
) -> Draft:
    """Read the stages mtp.0, mtp.1, ...; what they share lies in any one of them."""
    count = 1 + max(int(name.split(".")[1]) for name in draft.names("mtp."))

    def root(name: str) -> str:
        return next(f"mtp.{i}." for i in range(count) if f"mtp.{i}.{name}" in draft)

    def read(name: str) -> FloatArray:
        return draft(root(name) + name)

    backbone = DeepSeek4Backbone(
        facts=_facts(settings),
        stages=tuple(_stage(draft, f"mtp.{i}.") for i in range(count)),
        fc=read("main_proj.weight"),
        fc_norm=read("main_norm.weight"),
        norm=read("norm.weight"),
        last=Mixer(read("hc_head_fn"), read("hc_head_base"), read("hc_head_scale")),
        embedding=embedding,
        head=head,
    )
    return Draft(
        backbone=backbone,
        head=make_head(draft, settings, root("markov_head.markov_w1.weight")),
        taps=tuple(i + 1 for i in settings["dspark_target_layer_ids"]),
        block_size=settings["dspark_block_size"],
        first=0,
        mask=settings["dspark_noise_token_id"],
    )


def _facts(settings: dict[str, Any]) -> Facts:
    rotated = settings["qk_rope_head_dim"]
    frequency = float(settings["rope_theta"]) ** (-np.arange(0, rotated, 2) / rotated)
    return Facts(
        head_dim=settings["head_dim"],
        rotated=rotated,
        # no YaRN: that belongs to layers with compressed attention, which stages have not
        rope=Rope(frequency, interleaved=True),
        groups=settings["o_groups"],
        streams=settings["hc_mult"],
        eps=settings["rms_norm_eps"],
        mix_eps=settings["hc_eps"],
        sinkhorn=settings["hc_sinkhorn_iters"],
        experts_used=settings["num_experts_per_tok"],
        normalise=settings["norm_topk_prob"],
        routed_scale=settings["routed_scaling_factor"],
        limit=settings.get("swiglu_limit") or 0.0,
        sight=Sight(settings["sliding_window"]),
    )


def _stage(draft: Checkpoint, at: str) -> Stage:
    def mixer(name: str) -> Mixer:
        return Mixer(*(draft(f"{at}hc_{name}_{part}") for part in ("fn", "base", "scale")))

    def expert(name: str) -> Expert:
        return Expert(*(draft(f"{at}ffn.{name}.w{i}.weight") for i in (1, 2, 3)))

    count = len(draft.names(f"{at}ffn.experts.", ".w1.weight"))
    return Stage(
        part={name: draft(at + name) for name in _PARTS},
        attn=mixer("attn"),
        ffn=mixer("ffn"),
        experts=tuple(expert(f"experts.{j}") for j in range(count)),
        shared=expert("shared_experts"),
    )
