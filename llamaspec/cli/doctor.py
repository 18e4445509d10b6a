"""`llamaspec doctor`: what this machine and this build can do."""

import json
import platform
import shutil
from dataclasses import asdict
from typing import Annotated, Any

import typer

from llamaspec._version import LLAMA_CPP_COMMIT, __version__
from llamaspec.cli.guard import guarded, show_log

_LABEL_WIDTH = 16
_CHECK_TOKENS = 24


def doctor(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="A target: how exact is drafting for it?")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("-d", "--draft", help="Its draft; absent: as for lookup.")
    ] = None,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: the physical cores.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log too.")
    ] = False,
) -> None:
    """Say what this machine and build can do; with -m, how exact drafting is for that model.

    Decodes a little to prove it.
    """
    show_log(verbose)
    with guarded():
        report = {**_build(), "devices": _devices(), "notes": _notes(), "check": _check()}
        if model is not None:
            report["exactness"] = _exactness(model, draft or "lookup", threads)
        if as_json:
            typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
            return
        for line in _lines(report):
            typer.echo(line)


def _build() -> dict[str, Any]:
    from llamaspec.ffi import LIBRARY_DIR, build_info
    from llamaspec.processors import physical_cores
    from llamaspec.runtime.remote import PROGRAM

    server = LIBRARY_DIR / PROGRAM
    tools = LIBRARY_DIR.parent / "bin"
    return {
        "llamaspec": __version__,
        "llama_cpp": build_info()[1],
        "expected": LLAMA_CPP_COMMIT,
        "python": f"{platform.python_version()} on {platform.platform()}",
        "cores": physical_cores(),
        "backends": sorted(
            p.name for p in LIBRARY_DIR.glob("*ggml-*") if p.suffix and "base" not in p.name
        ),
        "tools": sorted(p.name for p in tools.glob("llama-*")) if tools.is_dir() else [],
        "rpc_server": str(server) if server.is_file() else None,
    }


def _devices() -> list[dict[str, Any]]:
    from llamaspec.runtime.backend import devices

    return [asdict(device) for device in devices()]


def _notes() -> list[str]:
    from llamaspec.ffi import LIBRARY_DIR
    from llamaspec.runtime.backend import devices

    notes = []
    kinds = {device.kind for device in devices()}
    has_cuda = any(LIBRARY_DIR.glob("*ggml-cuda*"))
    if shutil.which("nvidia-smi") and not has_cuda:
        notes.append("an NVIDIA driver is here but this build has no CUDA: python build.py --cuda")
    if has_cuda and "gpu" not in kinds:
        notes.append("this build has CUDA but no CUDA device answers; decoding runs on the CPU")
    if not kinds:
        notes.append("no backend could be loaded: rebuild with python build.py")
    return notes


def _check() -> dict[str, Any]:
    from llamaspec import demo
    from llamaspec.session import load

    # one thread: this shows that decoding is right, not how fast it is
    with load(threads=1) as session:
        prompt = [{"role": "user", "content": demo.PROMPT}]
        drafted, plain = (
            session.generate(prompt, max_tokens=_CHECK_TOKENS, draft_max=most, cache_prompt=False)
            for most in (session.draft_limit, 0)
        )
    return {"tau": drafted.stats.tau, "identical": drafted.token_ids == plain.token_ids}


def _exactness(model: str, draft: str, threads: int) -> dict[str, Any]:
    from llamaspec.session import load

    found: dict[str, Any] = {}
    for mode, exact in (("default", False), ("exact", True)):
        with load(model, draft, threads=threads, exact=exact) as session:
            measured = session.exactness
        found[mode] = {**asdict(measured), "spoken": str(measured)}
        if measured.bitwise:
            break
    return found


def _advice(found: dict[str, Any]) -> str:
    if found["default"]["bitwise"]:
        return "with and without the draft the same tokens; exact mode costs nothing more"
    if found["exact"]["bitwise"]:
        return "near ties can differ by default; --exact makes these passes bitwise equal"
    return "near ties can differ by default; --exact decides them by single rows"


def _lines(report: dict[str, Any]) -> list[str]:
    def line(label: str, value: str) -> str:
        return f"{label:<{_LABEL_WIDTH}}{value}"

    check = report["check"]
    same = "the same tokens" if check["identical"] else "DIFFERENT tokens"
    lines = [
        line("llamaspec", report["llamaspec"]),
        line("llama.cpp", report["llama_cpp"]),
        line("Python", report["python"]),
        line("physical cores", str(report["cores"])),
        line("backends", ", ".join(report["backends"]) or "none"),
        line("tools", ", ".join(report["tools"]) or "none (python build.py --tools)"),
        line("RPC server", report["rpc_server"] or "none (built with --no-rpc)"),
    ]
    for device in report["devices"]:
        free, total = device["free_bytes"] / 2**30, device["total_bytes"] / 2**30
        what = f"{device['name']} ({device['kind']}): {device['description']}"
        text = f"{what}, {free:.1f} of {total:.1f} GiB free"
        lines.append(line("device", text))
    lines += [line("note", note) for note in report["notes"]]
    for mode, found in report.get("exactness", {}).items():
        lines.append(line(f"{mode} mode", found["spoken"]))
    if "exactness" in report:
        lines.append(line("", _advice(report["exactness"])))
    lines.append(line("bundled pair", f"tau {check['tau']:.2f}, with and without the draft {same}"))
    return lines
