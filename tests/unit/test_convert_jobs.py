"""Jobs of `convert`: overrides, levels of settings, links, outputs, and what a failure leaves."""

import errno
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest

from llamaspec.convert import Job, convert
from llamaspec.errors import IncompatibleDraftError, ModelLoadError, OptionError
from tests import mutate
from tests.checkpoints import PACKAGINGS, Pair
from tests.checkpoints.shapes import TARGET_LAYERS, WIDTH
from tests.checkpoints.tokenizer import VOCABULARY
from tests.checkpoints.writing import Weights, write_safetensors
from tests.converted import reconfigure
from tests.damage import (
    GONE,
    SHARD,
    Change,
    holding,
    job,
    place,
    refused,
    settings,
    target_settings,
    tensor,
    tensors,
    values,
)

ZLAB, DEEP = "zlab", "deepspec"
NAN = float("nan")
NOBODY = 65534
SIGNALLING = np.uint32(0x7FA00000)
"""A NaN that NumPy warns of when it casts it."""


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    with mutate.bounded():
        yield


@pytest.fixture
def guarded_folder() -> Iterator[Path]:
    """A folder, and for this test a user whom permissions stop, which they do not stop root."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        user = os.geteuid()
        if user == 0:
            os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            os.seteuid(user)


@pytest.mark.parametrize(
    "name", ["draft", "draft/config.json", "draft/model.safetensors", "target"]
)
def test_what_may_not_be_read(name: str, guarded_folder: Path) -> None:
    pair = place(ZLAB, guarded_folder)
    mode = (guarded_folder / name).stat().st_mode
    (guarded_folder / name).chmod(0)
    try:
        line = refused(job(pair, guarded_folder), ModelLoadError)
    finally:
        (guarded_folder / name).chmod(mode)
    assert str(guarded_folder / name) in line
    assert "Permission denied" in line


def test_a_folder_that_may_not_be_written_to(guarded_folder: Path) -> None:
    pair, locked = place(ZLAB, guarded_folder), guarded_folder / "locked"
    locked.mkdir(0o555)
    line = refused(Job(pair.draft, pair.target, locked / "out.gguf"), OptionError)
    assert "cannot be written (Permission denied)" in line


# what has no default, under the names that exporters give it
NEEDED = {
    "theta": {"rope_theta"},
    "mask": {"mask_token_id", "dspark_noise_token_id"},
    "block": {"block_size", "dspark_block_size"},
    "taps": {"target_layer_ids", "aux_hidden_state_layer_ids", "dspark_target_layer_ids"},
    "epsilon": {"rms_norm_eps"},
}


def without(names: set[str], found: dict[str, Any]) -> Change:
    """Settings taken away at every level, and noted with their values."""

    def strip(node: dict[str, Any]) -> None:
        for key, value in list(node.items()):
            if key in names and value is not None:
                found[key] = node.pop(key)
            elif isinstance(value, dict) and key != "sliding_attention":
                strip(value)

    return lambda pair: reconfigure(pair.draft, strip)


@pytest.mark.parametrize("what", NEEDED)
@pytest.mark.parametrize("packaging", PACKAGINGS)
def test_nothing_that_matters_has_a_default(what: str, packaging: str, tmp_path: Path) -> None:
    pair, names = place(packaging, tmp_path), NEEDED[what]
    whole, taken, out = tmp_path / "whole.gguf", dict[str, Any](), tmp_path / "out.gguf"
    convert(Job(pair.draft, pair.target, whole))
    without(names, taken)(pair)
    assert taken
    line = refused(job(pair, tmp_path), ModelLoadError)
    assert any(name in line for name in names)
    assert "--set" in line
    convert(job(pair, tmp_path, overrides=taken))
    assert values(out) == values(whole)


LEVELS = ("", "dflash_config__", "dspark_config__", "transformer_layer_config__", "text_config__")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("key", ["mask_token_id", "block_size", "target_layer_ids", "rms_norm_eps"])
def test_settings_are_found_at_every_level(key: str, level: str, tmp_path: Path) -> None:
    pair, whole, taken = place("specforge", tmp_path), tmp_path / "whole.gguf", dict[str, Any]()
    convert(Job(pair.draft, pair.target, whole))
    without({key}, taken)(pair)
    settings(**{level + key: taken[key]})(pair)
    convert(job(pair, tmp_path))
    found, wanted = values(tmp_path / "out.gguf"), values(whole)
    if level == "transformer_layer_config__":  # makes it one of speculators
        assert wanted.pop("dflash.sample_from_anchor") is not found.pop("dflash.sample_from_anchor")
    assert found == wanted


@pytest.mark.parametrize("level", [*LEVELS, "rope_parameters__", "rope_scaling__"])
def test_theta_is_found_at_every_level(level: str, tmp_path: Path) -> None:
    pair = place(DEEP, tmp_path)
    settings(rope_parameters=GONE)(pair)
    settings(**{f"{level}rope_theta": 12345.0})(pair)
    convert(job(pair, tmp_path))
    assert values(tmp_path / "out.gguf")["dflash.rope.freq_base"] == 12345.0


def test_an_override_decides_between_levels(tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    settings(mask_token_id=7)(pair)
    convert(job(pair, tmp_path, overrides={"mask_token_id": 9}))
    assert values(tmp_path / "out.gguf")["tokenizer.ggml.mask_token_id"] == 9


@pytest.mark.parametrize("source", ["folder", "gguf"])
def test_an_override_that_nothing_reads_is_refused(source: str, tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    if source == "gguf":
        (tmp_path / "old").mkdir()
        convert(Job(pair.draft, pair.target, tmp_path / "old" / "draft.gguf"))
        pair = Pair(tmp_path / "old" / "draft.gguf", pair.target)
    line = refused(job(pair, tmp_path, overrides={"rope_thta": 1e6}), OptionError)
    assert "--set rope_thta" in line


@pytest.mark.parametrize("value", [True, "7", 1.5, NAN, [7], {"a": 7}, -1, 10**400])
def test_an_override_is_checked_as_the_file_is(value: object, tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    line = refused(job(pair, tmp_path, overrides={"num_hidden_layers": value}), ModelLoadError)
    assert "num_hidden_layers is" in line


def test_a_nan_in_the_targets_tables_is_a_difference(tmp_path: Path) -> None:
    pair, tables = place(DEEP, tmp_path), Weights("tables")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tables.exact(name, "F32", np.full((VOCABULARY, WIDTH), SIGNALLING).view(np.float32))
    write_safetensors(pair.target / SHARD, tables.stored)
    report = convert(job(pair, tmp_path))
    assert {"token_embd.weight", "output.weight"} <= report.plan.tensors.keys()


def test_unexpected_tensors_are_dropped_on_wish(tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    tensors(lambda found: found.update({"adapter.weight": found["norm.weight"]}))(pair)
    report = convert(job(pair, tmp_path, drop_unexpected=True))
    assert report.plan.left_out == {"adapter.weight": "unexpected"}


def test_the_last_layer_is_read_where_the_target_publishes_it(tmp_path: Path) -> None:
    pair = place("nemotron-nvfp4", tmp_path)
    last = [1, 3, TARGET_LAYERS - 1]
    settings(target_layer_ids=last, dflash_config__target_layer_ids=last)(pair)
    convert(job(pair, tmp_path))
    assert values(tmp_path / "out.gguf")["dflash.target_layers"] == [2, 4, TARGET_LAYERS]
    settings(target_layer_ids=[-1, 3], dflash_config__target_layer_ids=[-1, 3])(pair)
    assert "192]" in refused(
        Job(pair.draft, pair.target, tmp_path / "b.gguf"), IncompatibleDraftError
    )


def test_code_in_a_checkpoint_is_never_imported(tmp_path: Path) -> None:
    pair, marker = place(ZLAB, tmp_path), tmp_path / "marker"
    for folder in (pair.draft, pair.target):
        for name in ("dflash.py", "modeling.py", "json.py", "numpy.py", "conftest.py"):
            (folder / name).write_text(f"open({str(marker)!r}, 'w').close()\n")
    code = {"AutoModel": "dflash.DFlashDraftModel", "AutoConfig": "modeling.Config"}
    settings(auto_map=code, custom_pipelines={"x": {"impl": "modeling.P"}})(pair)
    target_settings(auto_map=code)(pair)
    convert(job(pair, tmp_path))
    assert not marker.exists()


def hub_cache(folder: Path, packaging: str) -> Pair:
    """Folders as the Hub's cache has them: links to blobs two folders up."""
    plain = place(packaging, folder / "plain")
    found = []
    for source in (plain.draft, plain.target):
        snapshot = folder / f"models--a--{source.name}" / "snapshots" / "0123abcd"
        blobs = snapshot.parents[1] / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        for number, path in enumerate(sorted(source.iterdir())):
            path.rename(blobs / str(number))
            (snapshot / path.name).symlink_to(Path("..", "..", "blobs", str(number)))
        found.append(snapshot)
    return Pair(*found)


def test_links_of_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    pair = hub_cache(tmp_path, DEEP)
    assert convert(job(pair, tmp_path)).plan.packaging == "DeepSpec"


@pytest.mark.parametrize("to", ["../../../plain/x.safetensors", "../../x.safetensors"])
def test_other_links_of_the_hubs_cache_are_not(to: str, tmp_path: Path) -> None:
    pair = hub_cache(tmp_path, DEEP)
    path = pair.draft / SHARD
    (path.parent / to).write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(to)
    line = refused(job(pair, tmp_path), ModelLoadError)
    assert "is a link to" in line
    assert "outside" in line


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    (pair.draft / SHARD).rename(pair.draft / "stored")
    (pair.draft / SHARD).symlink_to("stored")
    convert(job(pair, tmp_path))


def test_names_that_are_no_text(tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/dr\xffaft"))
    try:
        pair.draft.rename(folder)
    except OSError:
        pytest.skip("this file system takes text only")
    report = convert(Job(folder, pair.target, tmp_path / "out.gguf"))
    fields = gguf.GGUFReader(report.output).fields
    assert fields["general.name"].contents() == "dr?aft"


# an f32 of 3.4e38 is no bf16, a block of q8_0 with 1e7 has no f16 scale
@pytest.mark.parametrize(
    ("outtype", "value", "good"),
    [
        *(("f16", 7e4, False), ("f16", -7e4, False), ("f16", 6e4, True)),
        *(("bf16", 3.4e38, False), ("bf16", 3.3e38, True)),
        *(("q8_0", 1e7, False), ("q8_0", 8e6, True), ("q4_0", 1e6, False)),
        *(("f32", 3.4e38, True), ("auto", 3.4e38, True)),
    ],
)
def test_numbers_beyond_a_type(outtype: str, value: float, good: bool, tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    tensor("layers.0.mlp.up_proj.weight", holding(value))(pair)
    wanted = Job(pair.draft, pair.target, tmp_path / "out.gguf", outtype)
    if good:
        convert(wanted)
        return
    line = refused(wanted, ModelLoadError)
    assert "blk.0.ffn_up.weight" in line
    assert outtype in line
    assert f"{abs(value):g}" in line


class NotTaken(NamedTuple):
    """An output that a job must not have, and what the refusal says."""

    output: str
    words: str
    force: bool = False


OUTPUTS = {
    "exists": NotTaken("there.gguf", "exists already"),
    "no-folder": NotTaken("missing/out.gguf", "no folder"),
    "in-a-file": NotTaken("there.gguf/out.gguf", "no folder"),
    "a-folder": NotTaken("draft", "is a folder", force=True),
    "a-pipe": NotTaken("pipe", "not a regular file", force=True),
    "too-long": NotTaken("x" * 300, "cannot be written"),
    "no-name": NotTaken("nul\0byte", "cannot be written"),
    "the-draft": NotTaken("draft.gguf", "is the input", force=True),
    "a-link-to-the-draft": NotTaken("link.gguf", "is the input", force=True),
    "the-target": NotTaken("target/config.json", "is the input", force=True),
    "a-target's-weights": NotTaken("target/hard.bin", "is the input", force=True),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_cannot_be(name: str, tmp_path: Path) -> None:
    case, pair = OUTPUTS[name], place(ZLAB, tmp_path)
    draft = tmp_path / "draft.gguf"
    convert(Job(pair.draft, pair.target, draft))
    (tmp_path / "there.gguf").write_bytes(b"precious")
    (tmp_path / "link.gguf").symlink_to(draft)
    (pair.target / "hard.bin").hardlink_to(pair.target / "tokenizer.json")
    os.mkfifo(tmp_path / "pipe")
    before = mutate.read(tmp_path)
    wanted = Job(draft, pair.target, tmp_path / case.output, force=case.force)
    assert case.words in refused(wanted, OptionError)
    assert mutate.read(tmp_path) == before


def test_force_replaces_and_a_failure_does_not(tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")
    wanted = Job(pair.draft, pair.target, out, force=True)
    tensor("norm.weight", holding(NAN))(pair)
    refused(wanted, ModelLoadError)
    assert out.read_bytes() == b"precious"
    tensor("norm.weight", holding(1.0))(pair)
    convert(wanted)
    assert out.read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize("outtype", ["", "f33", "int8", "q8_0;", "../x", "q4"])
def test_types_that_do_not_exist(outtype: str, tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    wanted = Job(pair.draft, pair.target, tmp_path / "out.gguf", outtype)
    assert repr(outtype) in refused(wanted, OptionError)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = place(ZLAB, tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("llamaspec.convert.writer._write_data", full)
    assert "No space left" in refused(job(pair, tmp_path), OptionError)


def test_a_file_that_may_not_grow_leaves_nothing(tmp_path: Path) -> None:
    pair, before = place(ZLAB, tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        line = refused(job(pair, tmp_path), OptionError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "cannot be written" in line


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    pair = place(ZLAB, tmp_path)
    before = sorted(tmp_path.iterdir())

    def interrupt(done: int, _: int) -> None:
        if done > 50_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(job(pair, tmp_path), interrupt)
    assert sorted(tmp_path.iterdir()) == before
