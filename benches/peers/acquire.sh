#!/bin/sh
# Compares the cost of acquire, release and submit with StarPU's, in turns in the same minute.
#
#   apt-get install libstarpu-dev pkg-config
#   benches/peers/acquire.sh [ROUNDS]
#
# Both sides are medians of all rounds. StarPU's barest path is a try without sequential consistency: it neither
# waits in order nor orders tasks. StarPU's workers are paused, except for submissions. $DML names a binary of dml
# that is used instead of a new one.
set -eu
rounds=${1:-9}
if ! [ "$rounds" -gt 0 ] 2>/dev/null; then
    echo "usage: $0 [ROUNDS]" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
made=$(mktemp -d)
trap 'rm -r "$made"' EXIT

if [ -z "${DML:-}" ]; then
    cd "$here/../.."
    cargo build --quiet --release
    DML=${CARGO_TARGET_DIR:-$PWD/target}/release/dml
fi
starpu=$(pkg-config --list-all | sed -n 's/^\(starpu-[0-9.]*\) .*/\1/p' | head -n 1)
if [ -z "$starpu" ]; then
    echo "StarPU is not installed: apt-get install libstarpu-dev pkg-config" >&2
    exit 1
fi
cc -O2 "$here/acquire.c" -o "$made/starpu" $(pkg-config --cflags --libs "$starpu") -lpthread
export STARPU_WORKERS_NOBIND=1 STARPU_SILENT=1 STARPU_HOSTNAME=peer STARPU_HOME="$made"

for _ in $(seq "$rounds"); do
    "$made/starpu" >>"$made/theirs" 2>"$made/log" || { cat "$made/log" >&2; exit 1; }
    "$DML" bench acquire --runs 1 --json | sed -n 's/^ *"\([a-z_]*\)": \([0-9.]*\),*$/\1 \2/p' >>"$made/ours"
done

# Prints the median of a column of the lines with a name.
median() {
    awk -v name="$2" -v column="$3" '$1 == name && $column != "-" { print $column }' "$1" | sort -g |
        awk '{ v[NR] = $1 } END { if (NR) printf "%.0f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; else printf "-" }'
}

version=$(pkg-config --modversion "$starpu")
printf '%-20s %10s %10s %10s %14s\n' "($version, $rounds rounds)" dml StarPU barest "StarPU / dml"
for name in mutex_pair_ns read read_write write ten_buffers_ns different_buffers same_buffer_read same_buffer_write \
    new_buffer_ns submit_ns buffer_bytes; do
    ours=$(median "$made/ours" "$name" 2)
    theirs=$(median "$made/theirs" "$name" 2)
    barest=$(median "$made/theirs" "$name" 3)
    ratio=$(awk -v a="$theirs" -v b="$ours" 'BEGIN { printf "%.1f", a / b }')
    printf '%-20s %10s %10s %10s %14s\n' "$name" "$ours" "$theirs" "$barest" "$ratio"
done
