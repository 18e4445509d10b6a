"""Converted drafts in llama.cpp's own tools, beside the GGUFs that its converter wrote.

By hand, after `python build.py --tools`, from the repository root:

    python -m tests.e2e.peer_acceptance llamaspec/bin --shared DIR

`--shared` is the folder with the trained pair and the oracles. Converts the three drafts that
llama.cpp runs, lets llama-server and llama-speculative-simple complete the oracles' prompts with
each file, greedily, and prints how many proposals were accepted. Ends with 1 where the two files
of a draft differ.
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.converted import make

DRAFTS = {
    "tiny-dspark": "draft-dspark",
    "tiny-dflash": "draft-dflash",
    "tiny-dspark-speculators": "draft-dspark",
}
EXACT = ("-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32", "-fa", "off", "-t", "1")
PROPOSALS = 7
START_SECONDS = 60
ATTEMPTS = 5
Counts = tuple[int, int]


@dataclass(frozen=True)
class Setting:
    """Where the tools and the models are, and what is completed."""

    tools: Path
    target: Path
    lines: list[dict[str, Any]]
    tokens: int

    def command(self, tool: str, draft: Path, kind: str) -> list[str]:
        files = ("-m", str(self.target), "--spec-draft-model", str(draft))
        proposals = ("--spec-type", kind, "--spec-draft-n-max", str(PROPOSALS))
        return [str(self.tools / tool), *files, *proposals, *EXACT, "-c", "2048"]


def main() -> int:
    """Print both rates of every draft and tool."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tools", type=Path, help="folder of the tools")
    parser.add_argument("--shared", type=Path, required=True, help="folder with the trained pair")
    parser.add_argument("--lines", type=int, default=7, help="prompts of the oracle (default 7)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens a prompt (default 64)")
    arguments = parser.parse_args()
    models: Path = arguments.shared / "models"
    differing = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, kind in DRAFTS.items():
            converted = Path(scratch) / f"{name}.gguf"
            make(models / name, models / "tiny-target", converted)
            oracle = arguments.shared / "oracles" / f"oracle-{name}.public.jsonl"
            lines = [json.loads(line) for line in oracle.read_text().splitlines()]
            step = max(1, len(lines) // arguments.lines)
            target = models / "gguf" / "tiny-target-f32.gguf"
            setting = Setting(arguments.tools, target, lines[::step], arguments.tokens)
            ready = models / "gguf" / f"{name}-f32.gguf"
            for tool, count in (("llama-server", server), ("llama-speculative-simple", simple)):
                counts = [count(setting, draft, kind) for draft in (converted, ready)]
                shown = ", ".join(
                    f"{whose} {accepted} of {drafted} ({accepted / max(1, drafted):.1%})"
                    for whose, (accepted, drafted) in zip(("ours", "theirs"), counts, strict=True)
                )
                print(f"{name} {tool}: {shown}", flush=True)
                differing += counts[0] != counts[1]
    return int(differing > 0)


def simple(setting: Setting, draft: Path, kind: str) -> Counts:
    """Accepted and drafted tokens of llama-speculative-simple, a process a prompt."""
    accepted = drafted = 0
    for line in setting.lines:
        command = setting.command("llama-speculative-simple", draft, kind)
        command += ["-p", line["prompt_text"], "-n", str(setting.tokens), "--temp", "0"]
        found = logged(command)
        accepted += int(found["n_accept"])
        drafted += int(found["n_drafted"])
    return accepted, drafted


def logged(command: list[str]) -> dict[str, str]:
    """What llama-speculative-simple logs of its counts."""
    # now and then it ends, with 0, before its log's last lines are out
    for _ in range(ATTEMPTS):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = dict(re.findall(r"(n_accept|n_drafted) *= *(\d+)", done.stderr))
        if done.returncode == 0 and len(found) == 2:
            return found
        if done.returncode != 0:
            break
    raise SystemExit(f"{' '.join(command)}: ended with {done.returncode}\n{done.stderr[-2000:]}")


def server(setting: Setting, draft: Path, kind: str) -> Counts:
    """Accepted and drafted tokens of llama-server."""
    accepted = drafted = 0
    with running(setting, draft, kind) as address:
        for line in setting.lines:
            body = {
                "prompt": line["prompt_token_ids"] + line["output_token_ids"][:1],
                "n_predict": setting.tokens,
                "temperature": 0,
                "cache_prompt": False,
            }
            timings = post(f"{address}/completion", body)["timings"]
            accepted += timings["draft_n_accepted"]
            drafted += timings["draft_n"]
    return accepted, drafted


def post(address: str, body: dict[str, Any]) -> dict[str, Any]:
    """The JSON object that a request is answered with."""
    request = Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@contextmanager
def running(setting: Setting, draft: Path, kind: str) -> Iterator[str]:
    """A server, ready, at an address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = setting.command("llama-server", draft, kind)
    command += ["--host", "127.0.0.1", "--port", str(port), "-np", "1"]
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            if not answers(f"{address}/health", process):
                log.seek(0)
                raise SystemExit(f"{draft}: llama-server did not start\n{log.read()[-2000:]}")
            yield address
        finally:
            process.kill()
            process.wait()


def answers(address: str, process: subprocess.Popen[bytes]) -> bool:
    """Whether a server is ready within START_SECONDS."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urlopen(address, timeout=5) as answer:
                if answer.status == 200:
                    return True
        except (URLError, OSError):
            pass
        time.sleep(0.2)
    return False


if __name__ == "__main__":
    sys.exit(main())
