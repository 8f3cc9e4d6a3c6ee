#!/usr/bin/env bash
# A nightly run as a Slurm array: one task per cell, then one job that merges them.
# Copy it, edit the lines below and the requests, and start a nightly run with
#
#   bash nightly-slurm.sh
#
# It asks the plan for the cells and their time limit, so that it stays as it is when the plan
# changes.  A task that is requeued or submitted again resumes; a finished one is skipped.
#SBATCH --job-name=hybridbench-nightly
#SBATCH --cpus-per-task=2
#SBATCH --mem=4G
#SBATCH --requeue
#SBATCH --signal=TERM@60
#SBATCH --output=nightly-%A_%a.log
set -euo pipefail

plan=nightly              # a shipped name, or a path that is the same on all machines
nightly=/shared/nightly   # the directory of nightly runs, seen by all machines
options=()                # what changes the plan: --budget 2h --defect SLUG
merge_options=()          # what only the merge takes: --allow-partial

if [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
    # The array has one time limit for all of its tasks: that of the longest cell.
    read -r cells minutes < <(hybridbench nightly plan "$plan" "${options[@]}" --format json |
        python3 -c 'import json, sys
cells = json.load(sys.stdin)["cells"]
print(len(cells), max(cell["minutes"] for cell in cells))')
    run=$nightly/$(date -u +%Y%m%d-%H%M%S)
    mkdir -p "$run"
    array=$(sbatch --parsable --array="0-$((cells - 1))" --time="$minutes" \
        --export="ALL,NIGHTLY_RUN=$run" "$0")
    printf -v merge '%q ' hybridbench nightly merge "$run/cells" --plan "$plan" \
        "${options[@]}" "${merge_options[@]}" --out "$run"
    sbatch --parsable --dependency="afterany:${array%%;*}" --job-name=hybridbench-merge --wrap "$merge"
    exit
fi
# The task is this process: Slurm's signals reach it, and it stores what it has.
exec hybridbench nightly cell "$plan" "${options[@]}" \
    --index "$SLURM_ARRAY_TASK_ID" --out "$NIGHTLY_RUN/cells"
