#!/bin/sh
# Times stencils of other libraries beside those of `dml bench`: Stencil of the Parallel Research Kernels,
# and `stencil` of StarPU's examples. What is not there is left out, with a note.
#
#   git clone https://github.com/ParRes/Kernels
#   apt-get install starpu-examples openmpi-bin
#   benches/peers/stencils.sh Kernels [SIZE [STEPS]]
#
# The Kernels are compiled for the processor at hand, and so is dml, in target/native. $DML names a binary that
# is used instead. A step of PRK and of `dml bench prk` is the same work. StarPU's program counts 8 neighbours
# of bytes, so that only what further threads and devices bring can be compared with `dml bench stencil3d`.
set -eu
kernels=${1:?the folder of the Parallel Research Kernels}
size=${2:-2000}
steps=${3:-200}
made=$(mktemp -d)
trap 'rm -r "$made"' EXIT
cores=$(nproc)

if [ -z "${DML:-}" ]; then
    cd "$(dirname "$0")/../.."
    RUSTFLAGS="-C target-cpu=native" cargo build --quiet --release --target-dir target/native
    DML=$PWD/target/native/release/dml
    cd "$OLDPWD"
fi

# Prints the row of a device from a table of `dml bench`.
dml() {
    "$DML" bench "$@" | grep -E '^(cpu|cuda|opencl|offload|together)' | sed 's/^/dml  /'
}

prk() {
    sed -n 's/.*Avg time (s): */PRK  '"$1"'  seconds per step: /p; /ERROR/p'
}

echo "prk: $size rows of $size, $steps steps"
if cc -O3 -march=native -fopenmp -std=gnu11 -DPRKVERSION=0 "$kernels/C1z/stencil-openmp.c" -o "$made/openmp" -lm \
    2>"$made/log"; then
    for threads in 1 "$cores"; do
        OMP_NUM_THREADS=$threads "$made/openmp" "$steps" "$size" star 2 | prk "OpenMP, $threads threads"
        dml prk --size "$size" --steps "$steps" --devices cpu --limit "cpu=$threads"
    done
else
    echo "left out: PRK with OpenMP: $(tail -n 1 "$made/log")"
fi
if command -v nvcc >/dev/null; then
    if nvcc -O3 -std=c++20 --extended-lambda -arch=native -I"$kernels/Cxx11" -DPRKVERSION=0 "$kernels/Cxx11/stencil-cuda.cu" \
        -o "$made/cuda" 2>"$made/log"; then
        "$made/cuda" "$steps" "$size" 32 star 2 | prk CUDA
        dml prk --size "$size" --steps "$steps" --devices cuda:0
    else
        echo "left out: PRK with CUDA: $(tail -n 1 "$made/log")"
    fi
fi

edge=192
stencil=$(find /usr/lib -path '*starpu/examples/stencil/stencil' -type f 2>/dev/null | head -n 1)
echo "stencil3d: $edge planes of $edge rows of $edge, $steps steps"
if [ -n "$stencil" ] && command -v orted >/dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    for threads in 1 "$cores"; do
        STARPU_NCPU=$threads STARPU_WORKERS_NOBIND=1 "$stencil" -sizex $edge -sizey $edge -sizez $edge -nbz "$cores" \
            -niter "$steps" >"$made/log" 2>&1 || { tail -n 3 "$made/log"; continue; }
        sed -n 's/^Computation took: \([0-9.]*\) ms.*/\1/p' "$made/log" |
            awk -v s="$steps" -v t="$threads" '{ printf "StarPU  %d threads  seconds per step: %f\n", t, $1 / s / 1000 }'
    done
else
    echo "left out: StarPU, which needs the packages starpu-examples and openmpi-bin"
fi
dml stencil3d --size $edge --steps "$steps" --devices cpu,offload:0
