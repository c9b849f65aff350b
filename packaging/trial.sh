# Sourced by prove, prove-pythons and scripts/release: what a trial of a wheel takes. `root`: the folder of a bare system.
# shellcheck shell=bash disable=SC2154

# inside COMMAND...: in the root, without a network. /proc is mounted for as long as the command runs.
# shellcheck disable=SC2016
inside() { unshare -n -m bash -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" "$@"; }

# numpy_for VERSION: NumPy's wheel for a Python, into the root's /trial.
numpy_for() {
  python3 -m pip download -q --disable-pip-version-check --only-binary :all: --python-version "$1" --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 numpy -d "$root/trial"
}

# readme_program: the README's example in Python.
readme_program() { sed -n '/^import numpy as np, qkv$/,/^```$/p' "$(dirname "${BASH_SOURCE[0]}")/../README.md" | grep -v '```'; }
