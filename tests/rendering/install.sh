#!/usr/bin/env bash
# What `make test-rendering` opens and compiles with: Chromium and LaTeX, from Debian if they are missing. Needs root.
set -euo pipefail

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

packages=()
command -v chromium >/dev/null || packages+=(chromium)
command -v pdflatex >/dev/null || packages+=(texlive-latex-base)
kpsewhich booktabs.sty >/dev/null 2>&1 || packages+=(texlive-latex-recommended)
((${#packages[@]})) || exit 0

command -v apt-get >/dev/null || fail "expected ${packages[*]} or apt-get; found neither"
export DEBIAN_FRONTEND=noninteractive
# The package lists of a new machine may be missing or old.
apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null ||
    fail "apt-get could not install ${packages[*]}"
