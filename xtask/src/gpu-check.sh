#!/bin/sh
# Checks and measures DML on the GPUs of this machine: `sh check.sh [SECONDS]`, in the folder that
# `cargo xtask gpu-check` built. SECONDS (120) is the timeout of a step; the longest steps get
# four times as much. Needs only the driver and, for kernels in CUDA C, NVRTC.
cd "$(dirname "$0")" || exit 2
limit="${1:-120}"
failed=""
workloads="saxpy vecadd matmul mandelbrot gaussian taylor ray rap nbody binomial"
export RUST_BACKTRACE=1
chmod +x dml cuda_speed test-* 2>/dev/null

step() {
    name="$1"
    shift
    echo "== $name: $*"
    timeout "$limit" "$@" 2>&1
    code=$?
    if [ "$code" -ne 0 ]; then
        echo "FAILED $name: exit code $code"
        failed="$failed $name"
    fi
}

check() {
    step devices ./dml devices
    export DML_EXPECT=cuda
    # One test at a time: while one test loads a kernel, the driver may serialise another test's launches.
    step cuda ./test-cuda --test-threads 1
    step interop ./test-cuda_interop --test-threads 1
    step loss ./test-cuda_loss --nocapture
    step conformance ./test-conformance cuda::
    step by-hand ./test-by_hand
    # One test at a time, because some tests measure the free memory.
    step cust ./test-cuda_cust --test-threads 1
    step single ./test-single
    step table1 ./test-table1 on_cuda
    step launching ./test-launching cuda
    step kernels ./test-kernels cuda
    step observing ./test-observing cuda
    unset DML_EXPECT
    # The same GPU through OpenCL, if installed.
    if ./dml devices | grep -q '^unavailable: opencl: opencl:0, .*: it is cuda:'; then
        export DML_EXPECT=opencl
        step opencl ./test-opencl
        step opencl-awaited ./test-opencl_awaited
        step opencl-bound ./test-opencl_bound
        step opencl-overlap ./test-opencl_overlap
        step opencl-conformance ./test-conformance opencl::
        step opencl-launching ./test-launching opencl
        step opencl-kernels ./test-kernels
        step opencl-observing ./test-observing compiled
        unset DML_EXPECT
    fi
    step speed ./cuda_speed
    for workload in $workloads; do
        step "$workload" ./dml bench "$workload" --devices cuda:0 --runs 5
        step "$workload-with-cpu" ./dml bench "$workload" --devices cpu,cuda:0 --runs 5
    done
    # Compared with the hand-written versions, both with ordinary memory and both with page-locked memory.
    for workload in $workloads; do
        step "$workload-by-hand" ./dml bench "$workload" --devices cuda:0 --by-hand --runs 9
        step "$workload-by-hand-pinned" ./dml bench "$workload" --devices cuda:0 --by-hand --runs 9 --pinned 16G
    done
    # Kernels that access page-locked memory in place.
    for workload in $workloads; do
        step "$workload-in-place" ./dml bench "$workload" --devices cuda:0 --size tiny --runs 5 --memory bound --pinned 16G
    done
    step table ./dml reproduce table1 --devices cuda:0 --runs 20 --markdown
    # Many runs of kernels that take up to a second.
    limit=$((limit * 4))
    step one-device ./dml reproduce single --devices cuda:0 --runs 5 --markdown
    step one-device-pinned ./dml reproduce single --devices cuda:0 --runs 5 --pinned 16G --markdown
    limit=$((limit / 4))
    if ./dml devices | grep -q '^cuda:1 '; then
        for workload in $workloads; do
            step "$workload-on-two" ./dml bench "$workload" --devices cuda:0,cuda:1 --runs 5
        done
    fi
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck; do
            for workload in $workloads; do
                # DML counts a kernel's parameters up to an error of the driver, which memcheck would report.
                step "$tool-$workload" compute-sanitizer --tool "$tool" --error-exitcode 3 --report-api-errors no \
                    ./dml bench "$workload" --devices cuda:0 --size tiny --runs 1
            done
        done
    else
        echo "not run: compute-sanitizer is not installed"
    fi
    if [ -n "$failed" ]; then
        echo "FAILED:$failed"
    else
        echo "all passed"
    fi
}

check | tee results.txt
grep -q '^all passed$' results.txt
