#!/usr/bin/env bash
# Runs sessions under valgrind and fails on an invalid access that involves our shim or binding.
# Needs valgrind and a build that it can execute; it knows no AVX-512: CMAKE_ARGS=-DGGML_NATIVE=OFF python build.py
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

PYTHONMALLOC=malloc valgrind --tool=memcheck --error-limit=no --num-callers=24 \
  --log-file="$log" "$python" - <<'PY'
import llamaspec

with llamaspec.load(threads=1, context=256) as session:
    messages = [{"role": "user", "content": "There are 5 drawers with 8 pencils in each."}]
    done = session.generate(messages, max_tokens=12, draft_max=7)
    plain = session.generate(messages, max_tokens=12, draft_max=0)
    session.generate(messages, max_tokens=6, temperature=0.7, seed=3)
    stream = session.stream(messages, max_tokens=20, stop="zzz")
    next(stream)
    stream.close()
    print("tokens", len(done.token_ids), "identical", done.token_ids == plain.token_ids)
with llamaspec.load(threads=1, context=256, head="python") as session:
    print("python head", len(session.generate("Hello", max_tokens=6).token_ids))
PY

tail -n 4 "$log"
if grep -qE 'ls_[a-z_]+ |_cffi_|shim\.cpp' "$log"; then
  grep -nE -B6 -A12 'ls_[a-z_]+ |_cffi_|shim\.cpp' "$log" | head -80
  echo "valgrind: errors in or below the shim" >&2
  exit 1
fi
echo "valgrind: no error in or below the shim"
