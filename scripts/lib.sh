# shellcheck shell=bash disable=SC2034
# Shared by demo, test and sweep: find what is missing, install it from Debian's packages, configure, build. Sourced by bash.
# QKV_NO_INSTALL=1, and on anything but Debian 12 or newer: it only says what to install.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Debian's own tools first: another cmake on the path (pyenv, conda) may search for libraries elsewhere.
export PATH="/usr/sbin:/usr/bin:/sbin:/bin:$PATH"
jobs=$(nproc 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}"

# usage SCRIPT: its first comment; ends with 0.
usage() {
  sed -n '2,/^# shellcheck/{/^# shellcheck/d;s/^# \{0,1\}//;p}' "scripts/${1##*/}"
  exit 0
}
case "${1:-}" in --help | -h) usage "$0" ;; esac

# package | a program, a header in <> or a package of pkg-config after =, that shows it is there | what it is for
readonly build_needs='
g++               | g++                         | the C++20 compiler
cmake             | cmake                       | describes the build
ninja-build       | ninja                       | runs the build
nlohmann-json3-dev| <nlohmann/json.hpp>         | JSON: header of safetensors files, --json
zlib1g-dev        | <zlib.h>                    | zlib: compressed pictures
libpango1.0-dev   | =pangocairo                 | Pango, Cairo: text of PNG and PDF in any script
fonts-wqy-microhei| :                           | a font with Chinese, Japanese and Korean for pictures
libcli11-dev      | <CLI/CLI.hpp>               | CLI11: options of the tool
libfmt-dev        | <fmt/core.h>                | {fmt}: text of the tool
ccache            | ccache                      | what was compiled once is not compiled again (scripts/build, scripts/test)
'
readonly test_needs='
libgtest-dev      | <gtest/gtest.h>             | GoogleTest: the tests
librapidcheck-dev | <rapidcheck.h>              | RapidCheck: property tests
libpng-dev        | <png.h>                     | libpng: the tests read PNG back
poppler-utils     | pdftotext                   | poppler: the tests read PDF back
pkg-config        | pkg-config                  | the installed package is used through it too
python3           | python3                     | the structure tests
openmpi-bin       | mpirun                      | Open MPI: several ranks (25 MB; loaded at run time, nothing links it)
'
readonly python_needs='
python3-venv      | python3                     | the Python package is tested in an environment of its own
python3-dev       | python3-config              | headers of Python: the extension modules
'
readonly browser_needs='
chromium          | chromium                    | a browser: the page of the explorer is tested in it
'

say() { printf 'qkv: %s\n' "$*"; }
fail() {
  printf 'qkv: %s\n' "$*" >&2
  exit 1
}

is_debian() {
  [ -r /etc/os-release ] || return 1
  (
    . /etc/os-release
    [ "${ID:-}" = debian ] && [ "${VERSION_ID:-99}" -ge 12 ]
  ) && command -v apt-get dpkg-query >/dev/null
}

# is_there PACKAGE PROBE: asks the package database on Debian, otherwise looks for the thing itself (":" is always there).
is_there() {
  if is_debian; then
    grep -qx installed <<<"$(dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null)"  # a line for each architecture
  elif [ "${2#=}" != "$2" ]; then
    pkg-config --exists "${2#=}" 2>/dev/null
  elif [ "${2#<}" = "$2" ]; then
    command -v "$2" >/dev/null
  else
    printf '#include %s\n' "$2" | "${CXX:-c++}" -std=c++20 -E -x c++ - >/dev/null 2>&1
  fi
}

# ensure_packages NEEDS: says what is missing, one line each, and installs it; says nothing when all is there.
ensure_packages() {
  local missing=() lines='' package probe reason
  while IFS='|' read -r package probe reason; do
    package=${package// /} probe=${probe// /}
    if [ -n "$package" ] && ! is_there "$package" "$probe"; then
      missing+=("$package")
      lines+="  $package: ${reason# }"$'\n'
    fi
  done <<<"$1"
  [ ${#missing[@]} -gt 0 ] || return 0

  is_debian || fail "this is not Debian 12 or newer; install these by hand (Debian's names): ${missing[*]}"
  if [ -n "${QKV_NO_INSTALL:-}" ]; then
    say "missing packages:"
    printf '%s' "$lines"
    fail "QKV_NO_INSTALL is set; install them with: apt-get install --no-install-recommends ${missing[*]}"
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "neither root nor sudo; as root run: apt-get install --no-install-recommends ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} missing packages from Debian${as_root[*]:+ with sudo} (QKV_NO_INSTALL=1 only lists them):"
  printf '%s' "$lines"
  local log
  log=$(mktemp)
  # An update that fails (no network) is not fatal: the packages may be in apt's cache.
  "${as_root[@]}" apt-get update -qq >"$log" 2>&1 || say "apt-get update failed; continuing with the present package lists"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >>"$log" 2>&1 ||
    { tail -n 20 "$log" >&2; fail "apt-get could not install: ${missing[*]} (its output: $log)"; }
  rm -f "$log"
}

# build_release TARGETS -- CONFIGURE OPTIONS: configures the preset release into build/release and builds the targets. A new tree has no
# tests, which need packages of their own, unless an option asks for them.
build_release() {
  local targets=() log=build/release/configure.log
  while [ "$1" != -- ]; do
    targets+=("$1")
    shift
  done
  shift
  mkdir -p build/release
  [ -f build/release/CMakeCache.txt ] || set -- -DQKV_BUILD_TESTS=OFF "$@"
  cmake --preset release -DQKV_UNITY=ON "$@" >"$log" 2>&1 || { cat "$log" >&2; fail "the configure step failed (log: $log)"; }
  cmake --build --preset release --target "${targets[@]}" || fail "the build failed"
}

# python_environment: creates build/venv with the packages of python/tests/requirements.txt, anew when that file changes.
python_environment() {
  local stamp=build/venv/requirements.txt
  cmp -s python/tests/requirements.txt "$stamp" && return 0
  say "installing PyTorch, JAX, transformers ... into build/venv (log: build/venv.log)"
  mkdir -p build
  rm -rf build/venv
  local pip=(build/venv/bin/python -m pip install --disable-pip-version-check) torch
  torch=$(grep '^torch==' python/tests/requirements.txt)
  # PyTorch's CPU build is on its own index, which is used once and for this package alone.
  { python3 -m venv build/venv && "${pip[@]}" --retries 0 --extra-index-url https://download.pytorch.org/whl/cpu "$torch" &&
    "${pip[@]}" -r python/tests/requirements.txt; } >build/venv.log 2>&1 || { tail -n 20 build/venv.log >&2; fail "the packages of python/tests/requirements.txt could not be installed"; }
  cp python/tests/requirements.txt "$stamp"
}

# python_package: builds this tree's package and installs it into build/venv.
python_package() {
  say "building the Python package (log: build/python.log)"
  # The compiler under the name that CMake uses, so that ccache reuses the objects of the other builds.
  CXX="${CXX:-c++}" build/venv/bin/python -m pip install --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall . \
    >build/python.log 2>&1 || { tail -n 40 build/python.log >&2; fail "the Python package could not be built"; }
}

# fingerprint: one line for all that the tests read: files that git tracks or would, the compiler, the settings. Nothing outside git.
fingerprint() {
  git rev-parse --git-dir >/dev/null 2>&1 || return 0
  { git ls-files -co --exclude-standard -z | LC_ALL=C sort -zu | xargs -0 sha256sum 2>/dev/null || true
    "${CXX:-c++}" --version && env | grep '^QKV_' | sort || true; } | sha256sum
}
