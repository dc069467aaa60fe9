#!/usr/bin/env bash
# All that needs a CUDA GPU, without network, in at most eight minutes: a table on the screen, numbers in a JSON file.
#   tests/gpu/run_gpu_checks.sh [--out FILE]       --rehearse does the same at tiny size on a CPU
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=agg
exec timeout 480 "${PYTHON:-python3}" tests/gpu/gpu_checks.py "$@"
