#!/usr/bin/env bash
# Builds for CUDA and takes the figures of docs/benchmarks.md on a GPU.
#
#   bench/gpu.sh [OUT]          an environment with llamaspec's dependencies active, nvcc and nvidia-smi in PATH
#
# Shows: the gpu tests; the bundled pair and Qwen3-8B's shape in bf16 (random weights, synthetic acceptance)
# against plain decoding and llama.cpp's own loop at its best width; what passes cost beside the time that
# reading the weights takes; the share of time in bare passes. Results: OUT/*.json, *.txt (default gpu-results).
# Every step has a time limit of its own, together eight minutes on a machine with 16 cores; one that runs out
# is said so and the next goes on.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-gpu-results}
mkdir -p "$out"
python=${PYTHON:-python3}
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
failed=0

step() { # name, seconds, command...
    local name=$1 limit=$2
    shift 2
    local began=$SECONDS
    if timeout "$limit" "$@" >"$out/$name.txt" 2>&1; then
        echo "$name: done in $((SECONDS - began)) s"
    else
        echo "$name: failed ($?) after $((SECONDS - began)) s, see $out/$name.txt"
        failed=1
    fi
}

curves=(0.72,0.71,0.70,0.69,0.68,0.67,0.66 0.87,0.867,0.863,0.86,0.857,0.853,0.85 0.93,0.925,0.92,0.915,0.91,0.905,0.90)
names=(chat code maths)
arms=plain,dspark,server@1,server@3,server@5,server@7

step build 300 "$python" build.py --cuda --cuda-arch "$capability" --tools
step tests 60 "$python" -m pytest -q -m gpu
step bundled 60 "$python" -m llamaspec bench run --arms "$arms" --random 4 --repeats 5 -n 96 --json "$out/bundled.json"
step bundled-efficiency 20 "$python" -m llamaspec.bench.efficiency --repeats 3
step synth 90 "$python" -m llamaspec bench synth --shape qwen3-8b --quant bf16 -o "$out/models"
model=$out/models/qwen3-8b-bf16-target.gguf
draft=$out/models/qwen3-8b-bf16-draft.gguf
step cost 60 "$python" -m llamaspec bench cost -m "$model" -d "$draft" --widths 1-8 --depths 256,2048 \
    --json "$out/cost.json"
for i in 0 1 2; do
    step "qwen3-8b-${names[$i]}" 60 "$python" -m llamaspec bench run -m "$model" -d "$draft" --arms "$arms" \
        --synth-rates "${curves[$i]}" --repeats 3 -n 64 --json "$out/qwen3-8b-${names[$i]}.json"
done
step efficiency 40 "$python" -m llamaspec.bench.efficiency -m "$model" -d "$draft" --repeats 3 -n 32
rm -rf "$out/models"
exit $failed
