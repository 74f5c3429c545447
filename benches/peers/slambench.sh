#!/bin/sh
# Times KinectFusion of SLAMBench 1 (OpenMP and OpenCL) beside `dml bench slam`, on the same frames, and
# compares both with the true way of the camera. What is not there is left out, with a note.
#
#   git clone https://github.com/pamela-project/slambench
#   apt-get install g++ libtoon-dev ocl-icd-opencl-dev
#   benches/peers/slambench.sh slambench [FRAMES]
#
# $DML names a binary that is used instead of the one that is built, and $OPENCL_PLATFORM the number of the
# platform that SLAMBench uses, 0 by default. Times are per frame, without reading and rendering. Without a
# reference, SLAMBench's OpenCL kernel reads out of bounds in the first frame, and PoCL crashes. So one
# condition is negated in a copy.
set -eu
slambench=${1:?the folder of SLAMBench}/kfusion
frames=${2:-100}
made=$(mktemp -d)
trap 'rm -r "$made"' EXIT

if [ -z "${DML:-}" ]; then
    cd "$(dirname "$0")/../.."
    cargo build --quiet --release
    DML=${CARGO_TARGET_DIR:-$PWD/target}/release/dml
    cd "$OLDPWD"
fi

# Prints time per frame and errors from a log of SLAMBench. A line has the pose before its frame.
slambench() {
    awk -v name="$1" '
        NR == FNR { x[$1] = $2; y[$1] = $3; z[$1] = $4; next }
        $1 ~ /^[0-9]+$/ {
            time += $8; count++
            lost += $1 > 3 && $13 == 0
            if ($1 > 0) {
                at = $1 - 1
                dx = $10 - (x[at] - x[0]); dy = $11 - (y[at] - y[0]); dz = $12 - (z[at] - z[0])
                off = sqrt(dx * dx + dy * dy + dz * dz); sum += off
                if (off > most) most = off
            }
        }
        END {
            printf "%-20s %8.2f ms %8.1f frames/s  ATE %5.2f mm, at most %5.2f mm  lost %d\n", name, time / count * 1e3,
                count / time, sum / (count - 1) * 1e3, most * 1e3, lost
        }' "$made/way" "$made/log"
}

dml() {
    "$DML" bench slam --size paper --frames "$frames" --runs 1 --devices "$1" --json \
        --frames-to "$made/frames.raw" --way-to "$made/way" >"$made/json"
    python3 - "$made/json" "$1" <<'END'
import json, sys
row = json.load(open(sys.argv[1]))["rows"][0]
print("%-20s %8.2f ms %8.1f frames/s  ATE %5.2f mm, at most %5.2f mm  lost %d" % ("dml " + sys.argv[2],
      row["frame_s"] * 1e3, row["frames_per_s"], row["ate_mean_m"] * 1e3, row["ate_max_m"] * 1e3, row["lost"]))
END
}

run() {
    "$made/$1" -i "$made/frames.raw" -s 4.8 -p 0.5,0.5,0 -k 481.2,480,320,240 -r 2 -z 1000000 -o "$made/log" >/dev/null 2>&1
}

# Compiles a program: its name, its sources, and further options.
build() {
    name=$1 sources=$2
    shift 2
    g++ -O3 -w -std=gnu++11 -DCL_TARGET_OPENCL_VERSION=120 -I"$slambench/include" -I"$slambench/thirdparty" \
        "$slambench/src/benchmark.cpp" "$slambench/src/PowerMonitor.cpp" $sources "$@" -o "$made/$name" -lrt -lpthread 2>"$made/errors"
}

echo "slam: $frames frames of 640 x 480, 256 voxels per edge, on $(nproc) cores"
for device in cpu opencl:0; do
    dml "$device" || echo "left out: dml on $device"
done
if build openmp "$slambench/src/cpp/kernels.cpp" -fopenmp; then
    run openmp && slambench "SLAMBench OpenMP"
else
    echo "left out: SLAMBench with OpenMP: $(tail -n 1 "$made/errors")"
fi
if build opencl "$slambench/src/opencl/kernels.cpp $slambench/src/opencl/common_opencl.cpp" -lOpenCL; then
    sed 's/projPixel.x < 0 ||/!(projPixel.x >= 0) ||/' "$slambench/src/opencl/kernels.cl" >"$made/kernels.cl"
    export OPENCL_KERNEL="$made/kernels.cl"
    run opencl && slambench "SLAMBench OpenCL"
else
    echo "left out: SLAMBench with OpenCL: $(tail -n 1 "$made/errors")"
fi
