"""The arms that llama.cpp's own tools decode: llama-server over HTTP, llama-speculative-simple."""

import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from llamaspec.bench.arms import ArmSpec, Generated, Ready
from llamaspec.bench.ours import without_end
from llamaspec.bench.synthetic import SEED, as_llama_cpp, for_width
from llamaspec.errors import LlamaSpecError, OptionError
from llamaspec.options import LoadOptions

START_SECONDS = 600
REQUEST_SECONDS = 3600
_ATTEMPTS = 5
_POLL_SECONDS = 0.1
_TAIL = 2000
# requests to this machine are nobody else's business, whatever http_proxy says
_open = build_opener(ProxyHandler({})).open


@dataclass(frozen=True)
class Tools:
    """llama.cpp's tools in a folder, with the files and settings that all arms share.

    kinds: llama.cpp's name of each draft's kind, by its path. n_ctx: positions of the context of
    each of `slots` sequences.
    """

    folder: Path
    target: Path
    options: LoadOptions
    n_ctx: int
    kinds: dict[Path, str]
    slots: int = 1

    def command(self, tool: str, draft: Path | None, width: int) -> tuple[str, ...]:
        """A tool's command line. Raises OptionError where it is not there."""
        path = self.folder / tool
        if not path.is_file():
            raise OptionError(
                f"there is no {tool} in {self.folder}; build it with python build.py --tools, or "
                "name another folder with --tools"
            )
        options = self.options
        threads, cache = str(options.n_threads), options.cache_type
        words = [str(path), "-m", str(self.target)]
        words += ["-c", str(self.slots * self.n_ctx)]
        words += ["-t", threads, "-tb", threads, "-fa", options.flash_attention]
        words += ["-ctk", cache, "-ctv", cache]
        words += ["-b", str(options.batch), "-ub", str(options.batch)]
        words += ["-ngl", _layers(options.n_gpu_layers)]
        if options.rpc:
            words += ["--rpc", options.rpc]
        if draft is not None:
            words += ["--spec-draft-model", str(draft), "--spec-type", self.kinds[draft]]
            words += ["--spec-draft-n-max", str(width), "-ctkd", cache, "-ctvd", cache]
            words += ["-td", threads, "-tbd", threads]
            words += ["-ngld", _layers(options.n_gpu_layers_draft)]
        return tuple(words)

    def version(self) -> str:
        """What llama-server says it is; "" where there is none."""
        path = self.folder / "llama-server"
        if not path.is_file():
            return ""
        done = subprocess.run(
            [str(path), "--version"], capture_output=True, check=False, timeout=START_SECONDS
        )
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        return next((line for line in said.splitlines() if line.startswith("version")), "")


@dataclass
class ServerArm:
    """A llama-server at an address; the prompt cache is off for every request."""

    argv: tuple[str, ...]
    address: str
    ends: frozenset[int]
    width: int

    def run(self, prompt: Ready, max_tokens: int) -> Generated:
        """One request, from scratch. Raises LlamaSpecError where it fails."""
        body = {
            "prompt": prompt.ids.tolist(),
            "n_predict": max_tokens,
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
            "seed": SEED + prompt.number,
        }
        started = time.perf_counter()
        answer = self._post(body)
        latency = time.perf_counter() - started
        try:
            times = answer["timings"]
            tokens = int(times["predicted_n"])
            drafted, accepted = int(times.get("draft_n", 0)), int(times.get("draft_n_accepted", 0))
            return Generated(
                tokens=tokens,
                decode_rate=float(times["predicted_per_second"]),
                request_rate=tokens / latency,
                latency_s=latency,
                rounds=reckoned_rounds(tokens, drafted, accepted, self.width),
                drafted=drafted,
                accepted=accepted,
                ids=without_end(tuple(map(int, answer["tokens"])), self.ends),
                text=str(answer["content"]).encode("utf-8", "surrogatepass"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LlamaSpecError(
                f"llama-server's answer lacks what it should say: {error}"
            ) from None

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        request = Request(
            f"{self.address}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with _open(request, timeout=REQUEST_SECONDS) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError) as error:
            detail = getattr(error, "read", lambda: b"")()[:300].decode("utf-8", "replace")
            raise LlamaSpecError(f"llama-server failed a request ({error}) {detail}") from None
        return found


def reckoned_rounds(tokens: int, drafted: int, accepted: int, width: int) -> int:
    """The rounds of a text, of which llama-server does not tell; 0 where it did not draft.

    A round commits one token more than it accepts, but for a last one that an end token cuts off;
    and it drafts `width` tokens, but for last ones that the limit cuts. Each count errs low only.
    """
    return max(tokens - 1 - accepted, -(-drafted // width)) if drafted else 0


@contextmanager
def server(
    tools: Tools,
    arm: ArmSpec,
    draft: Path | None,
    ends: frozenset[int],
    rates: tuple[float, ...] | None,
    width: int,
) -> Iterator[ServerArm]:
    """A llama-server for an arm, ready; it ends with the block. Raises LlamaSpecError where it
    does not start.
    """
    words = [*tools.command("llama-server", draft, width), "--cache-ram", "0"]
    words += ["-np", str(tools.slots)]
    if rates is not None and draft is not None:
        words += ["--spec-synth-rates", as_llama_cpp(for_width(rates, width, arm.name))]
    with listening(words) as address:
        yield ServerArm(tuple(words), address, ends, width)


@contextmanager
def listening(words: Sequence[str]) -> Iterator[str]:
    """A llama-server with these words, on a free port; yields its address once it is ready. Raises
    LlamaSpecError where it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*words, "--host", "127.0.0.1", "--port", str(port), "--no-webui"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process, log)
            yield address
        finally:
            process.kill()
            process.wait()


def _wait(address: str, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with _open(f"{address}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            pass
        time.sleep(_POLL_SECONDS)
    log.seek(0)
    said = log.read().decode("utf-8", "replace")[-_TAIL:]
    raise LlamaSpecError(f"llama-server did not start: {said}")


@dataclass
class SimpleArm:
    """llama-speculative-simple, a process a prompt; its start is not counted."""

    argv: tuple[str, ...]

    def run(self, prompt: Ready, max_tokens: int) -> Generated:
        """Generate greedily. Raises LlamaSpecError where it fails."""
        with tempfile.NamedTemporaryFile(suffix=".txt") as file:
            file.write(prompt.text.encode("utf-8", "surrogatepass"))
            file.flush()
            # it stops once more than -n tokens are there
            limit = ["-n", str(max(0, max_tokens - 1))]
            words = [*self.argv, "-bf", file.name, "--no-escape", *limit, "--temp", "0"]
            out, found = _logged(words)
        tokens, decode_s = int(found["decoded"][0]), float(found["decoded"][1])
        encode_s = float(found["encoded"][1])
        return Generated(
            tokens=tokens,
            decode_rate=tokens / decode_s if decode_s > 0 else 0.0,
            request_rate=tokens / (encode_s + decode_s) if encode_s + decode_s > 0 else 0.0,
            latency_s=encode_s + decode_s,
            rounds=tokens - int(found["n_accept"][0]),
            drafted=int(found["n_drafted"][0]),
            accepted=int(found["n_accept"][0]),
            overshot=tokens > max_tokens,
            text=completed(out, prompt.text.encode("utf-8", "surrogatepass")),
        )


def simple(tools: Tools, draft: Path, width: int) -> SimpleArm:
    """llama-speculative-simple for an arm."""
    return SimpleArm((*tools.command("llama-speculative-simple", draft, width), "-lv", "3"))


def completed(out: bytes, prompt: bytes) -> bytes | None:
    """What follows the prompt in the tool's output; None where it does not repeat the prompt."""
    start = out.find(prompt)
    return (
        out[start + len(prompt) :].removesuffix(b"\n\n").removesuffix(b"\n\n")
        if start >= 0
        else None
    )


_COUNTS = re.compile(r"(n_accept|n_drafted) += (\d+)()")
_RATES = re.compile(r"(encoded|decoded) +(\d+) tokens in +([\d.]+) seconds")


def _logged(command: list[str]) -> tuple[bytes, dict[str, tuple[str, str]]]:
    """A run's output, and the counts and times that it logs."""
    # now and then it ends, with 0, before its log's last lines are out
    for _ in range(_ATTEMPTS):
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        log = done.stderr.decode("utf-8", "replace")
        lines = [*_COUNTS.findall(log), *_RATES.findall(log)]
        found = {name: (first, second) for name, first, second in lines}
        if done.returncode == 0 and len(found) == 4:
            return done.stdout, found
        if done.returncode != 0:
            break
    raise LlamaSpecError(
        f"llama-speculative-simple ended with {done.returncode}: {log[-_TAIL:].strip()}"
    )


def _layers(count: int) -> str:
    return "all" if count < 0 else str(count)
