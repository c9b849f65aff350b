# Sourced by prove, prove-pythons and scripts/release: what a trial of a wheel takes. `root`: the folder of a bare system, `folder`: of its logs.
# shellcheck shell=bash disable=SC2154

# inside COMMAND...: in the root, without a network and without what this machine sets for pip, Python and qkv. /proc is mounted for as long as
# the command runs.
# shellcheck disable=SC2016
inside() (
  unset "${!PIP_@}" "${!PYTHON@}" "${!QKV_@}"
  exec unshare -n -m bash -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" "$@"
)

# numpy_for VERSION ARCHITECTURE FOLDER: NumPy's wheel for a Python, by the pip of scripts/release.
numpy_for() {
  "$(dirname "${BASH_SOURCE[0]}")/../build/release-tools/python/bin/python" -m pip download -q --disable-pip-version-check --only-binary :all: \
    --no-deps --python-version "$1" --platform "manylinux_2_28_$2" --platform "manylinux_2_27_$2" --platform "manylinux2014_$2" numpy -d "$3"
}

# readme_commands: those of the README that start the tool.
readme_commands() { sed -n 's/^    \(qkv [^#]*\).*/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../README.md"; }

# readme_program: the README's example in Python.
readme_program() { sed -n '/^import numpy as np, qkv$/,/^```$/p' "$(dirname "${BASH_SOURCE[0]}")/../README.md" | grep -v '```'; }

# logs_of_a_failure: for a trap of EXIT.
logs_of_a_failure() { [ $? -eq 0 ] || tail -vn 8 "$folder"/*.log >&2 || true; }
