#!/usr/bin/env bash
# Installs corral, editable, with one extra, and says what goes on while libllama compiles.
# usage: scripts/install.sh PYTHON VENV EXTRA
set -euo pipefail
python=$1 venv=$2 extra=$3
log=$venv/install.log

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: corral needs Python 3.11 or later, and $python is not (choose one with make PYTHON=...)" >&2
    exit 1
fi
if [ ! -x "$venv/bin/pip" ] && ! "$python" -m venv "$venv"; then
    echo "error: cannot make a virtual environment (on Debian: apt install python3-venv)" >&2
    exit 1
fi

# Without it CMake's Makefiles compile one file at a time.
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc 2>/dev/null || echo 2)}

# In a process group of its own, so that an interrupt ends the compilers, too.
set -m
echo "installing corral[$extra] into $venv (details: $log)"
"$venv/bin/pip" install -v --disable-pip-version-check --progress-bar off -e ".[$extra]" >"$log" 2>&1 &
pip=$!
set +m
trap 'kill -- "-$pip" 2>/dev/null; exit 130' INT TERM

beat() {
    local built
    # The build prints "[12/345] gcc ..." (ninja) or "[ 12%] Building ..." (make).
    built=$(grep -aoE '^ *\[ *[0-9]+(/[0-9]+|%)\] ' "$log" | tail -n 1 | grep -oE '[0-9]+(/[0-9]+|%)' || true)
    if [ -n "$built" ]; then
        echo "  $1: compiling llama-cpp-python, $built (about 5 minutes on 2 cores, only the first time)"
    else
        echo "  $1: $(grep -aoE '^ *(Collecting|Downloading|Building|Installing) .*' "$log" | tail -n 1 | sed 's/^ *//' | cut -c 1-70 || true)"
    fi
}

started=$SECONDS next=15
while kill -0 "$pip" 2>/dev/null; do
    sleep 1
    elapsed=$((SECONDS - started))
    if [ "$elapsed" -ge "$next" ]; then
        beat "$((elapsed / 60)) min $((elapsed % 60)) s"
        next=$((next + 15))
    fi
done

if ! wait "$pip"; then
    tail -n 30 "$log" >&2
    echo "error: the installation failed; all of its output is in $log" >&2
    echo "       llama-cpp-python is compiled here: gcc, g++ and make must be installed" >&2
    exit 1
fi
echo "installed in $((SECONDS - started)) s"
