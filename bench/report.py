"""Results as one HTML page: no script, nothing fetched, everything from a file escaped."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from llamaspec.bench import plots, tables
from llamaspec.bench.record import FORMAT, Result, load
from llamaspec.bench.typed import of_json, read_object
from llamaspec.errors import OptionError
from llamaspec.schedule.cost import CostCurve

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
td.loss { color: #b00020 }
td.text { text-align: left; overflow-wrap: anywhere }
p.warn { background: #fff3cd; padding: .5rem }
img { max-width: 100%; height: auto }
"""
_HEAD = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:\">"
    "<title>llamaspec bench</title>"
)
_COLUMNS = (
    *("category", "base t/s", "spec t/s", "speedup", "95%", "request speedup", "latency"),
    *("accept", "tau", "same output"),
)


def write_report(files: Sequence[Path], output: Path) -> None:
    """One page of results of `bench run` and costs of `bench cost`, in the order given.

    Raises OptionError for a file that is neither, or damaged; where matplotlib is missing, or the
    page cannot be written.
    """
    if not files:
        raise OptionError("there is no result to report; give a file that llamaspec bench wrote")
    plots.library()
    body = [part for path in files for part in _file(path)]
    page = "\n".join([f"{_HEAD}<style>{_STYLE}</style></head><body>", *body, "</body></html>"])
    try:
        output.write_text(page + "\n", "utf-8", errors="replace")
    except OSError as error:
        raise OptionError(f"{output}: cannot be written ({error.strerror})") from None


def _file(path: Path) -> list[str]:
    found = read_object(path)
    if found.get("format") == FORMAT:
        return _result(path, load(path))
    if "curve" in found:
        return [f"<h1>{_text(path.name)}</h1>", *_cost(found, str(path))]
    raise OptionError(f"{path}: neither a result of bench run nor one of bench cost")


def _result(path: Path, result: Result) -> list[str]:
    arms = [arm.name for arm in result.arms if arm.name != result.base]
    found = [f"<h1>{_text(path.name)}</h1>"]
    if result.synthetic:
        found.append(
            '<p class="warn">Synthetic acceptance: times are real, texts and rates are not.</p>'
        )
    warning = tables.busy(result)
    if warning:
        found.append(f'<p class="warn">{_text(warning)}</p>')
    if result.left_out:
        found.append(f"<p>{result.left_out} prompts did not fit the context and were left out.</p>")
    if arms:
        found += [f"<h2>Speedup over {_text(result.base)}</h2>", _image(plots.speedups(result))]
    for arm in arms:
        found += [f"<h3>{_text(arm)}</h3>", _lines(tables.lines(result, arm))]
    found += _acceptance(result)
    shares = plots.time_shares(result)
    if shares:
        found += ["<h2>Where the time goes</h2>", _image(shares)]
    found += ["<h2>What was measured</h2>", _pairs(result.definitions)]
    found += ["<h2>Settings</h2>", _pairs(result.settings), "<h2>Machine and files</h2>"]
    load_average = {"load average": ", ".join(f"{x:.2f}" for x in result.load)}
    found += [_pairs(result.about | load_average), "<h2>Commands of the tools</h2>"]
    found += [_pairs({arm.name: " ".join(arm.argv) for arm in result.arms if arm.argv})]
    found += ["<h2>Outputs</h2>", _outputs(result)]
    return found


def _lines(lines: Sequence[tables.Line]) -> str:
    rows = []
    for one in lines:
        cells = [_cell(one.category), _cell(f"{one.base:.1f}"), _cell(f"{one.spec:.1f}")]
        if one.speedup is None:
            cells += [_cell("n/a")] * 2
        else:
            middle, low, high = one.speedup
            cells.append(_cell(f"{middle:.3f}", "loss" if middle < 1 else ""))
            cells.append(_cell(f"{low:.3f} to {high:.3f}"))
        request = one.request
        cells.append(
            _cell("n/a")
            if request is None
            else _cell(f"{request.middle:.3f}", "loss" if request.middle < 1 else "")
        )
        cells.append(_cell(f"{one.latency:.3f}"))
        drafted = one.tau > 0
        cells.append(_cell(f"{one.accept:.1%}" if drafted else "n/a"))
        cells.append(_cell(f"{one.tau:.2f}" if drafted else "n/a"))
        cells.append(_cell(f"{one.same} of {one.compared}" if one.compared else "n/a"))
        rows.append(cells)
    return _table(_COLUMNS, rows)


def _acceptance(result: Result) -> list[str]:
    found = []
    seen = plots.acceptances(result)
    if seen:
        found += ["<h2>Acceptance by position</h2>", _image(plots.conditional(seen))]
        width = max(len(one.verified) for one in seen.values())
        rows = []
        for arm, one in seen.items():
            for name, rates in (
                ("once reached", one.conditional),
                ("of verified", one.unconditional),
            ):
                cells = [_cell(f"{arm}, {name}"), *(_cell(f"{rate:.3f}") for rate in rates)]
                rows.append(cells + [_cell("")] * (width - len(rates)))
        found.append(_table(("arm", *(str(i + 1) for i in range(width))), rows))
        found += ["<h2>Accepted proposals of a round</h2>", _image(plots.lengths(seen))]
    trusted = plots.reliabilities(result)
    if trusted:
        found += ["<h2>Is a confidence what it says?</h2>", _image(plots.calibration(trusted))]
    return found


def _cost(found: Mapping[str, Any], where: str) -> list[str]:
    try:
        curve = CostCurve.of_json(found.get("curve"))
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from None
    numbers = {
        name: of_json(float, found.get(name), f"{where}.{name}")
        for name in ("bandwidth", "target_bytes", "draft_bytes")
    }
    if numbers["bandwidth"] <= 0:
        raise OptionError(f"{where}: its bandwidth is {numbers['bandwidth']}, not above 0")
    floor = numbers["target_bytes"] / numbers["bandwidth"]
    spoken = {
        "memory bandwidth": f"{numbers['bandwidth'] / 1e9:.1f} GB/s",
        "weights of a target pass": f"{numbers['target_bytes'] / 1e6:.1f} MB",
        "their time at least": f"{1000 * floor:.2f} ms",
    }
    image = _image(plots.cost(curve, floor))
    return ["<h2>Cost of passes</h2>", image, _pairs(spoken | dict(curve.settings))]


def _outputs(result: Result) -> str:
    """The digests of every arm on every prompt: of the first repeat, and whether others agree."""
    rows = []
    for arm in result.arms:
        by_prompt: dict[int, list[str]] = {}
        for sample in result.of(arm.name):
            digest = sample.digest or sample.text_digest or "none"
            by_prompt.setdefault(sample.prompt, []).append(digest)
        for prompt, digests in by_prompt.items():
            asked = result.prompts[prompt]
            steady = "" if len(set(digests)) == 1 else "differs between repeats"
            name = f"{asked.category} {asked.id}"
            rows.append([_cell(arm.name), _cell(name), _cell(digests[0]), _cell(steady)])
    return _table(("arm", "prompt", "SHA-256 of the token ids (or text)", ""), rows)


def _pairs(values: Mapping[str, str]) -> str:
    return _table(("", ""), [[_cell(name), _cell(value, "text")] for name, value in values.items()])


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{_text(text)}</td>' if kind else f"<td>{_text(text)}</td>"


def _image(svg: str) -> str:
    # an image runs no script, and its ids do not meet those of others
    data = b64encode(svg.encode("utf-8", "replace")).decode()
    return f'<p><img alt="plot" src="data:image/svg+xml;base64,{data}"></p>'


def _text(text: str) -> str:
    return escape(text, quote=True)
