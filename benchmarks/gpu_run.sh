#!/bin/sh
# Runs Paribus on a GPU from this folder, without a network and without changing the machine's Python.
#   ./run.sh PART...          parts of benchmarks/gpu.py, such as: ./run.sh device trials
#   ./run.sh tests [OPTION…]  the tests that need a GPU; the options are pytest's
#   ./run.sh study [OPTION…]  benchmarks/gpu_study.py
#   ./run.sh paribus [WORD…]  any command of paribus
# PYTHON selects an interpreter that has torch (default: python3), RESULTS the folder of the results (default: results).
set -eu
if [ $# -eq 0 ]; then
    sed -n '2,/^set/s/^# //p' "$0"
    exit
fi
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
results=${RESULTS:-$here/results}
if [ ! -e "$here/site/.complete" ]; then
    PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --upgrade \
        --target "$here/site" "$here"/wheels/*.whl
    touch "$here/site/.complete"
fi
export PYTHONPATH="$here/site${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$results"
case $1 in
tests)
    shift
    cd "$here"
    # Plugins of other packages stay out, and warnings of other versions than the pinned ones are no failures.
    PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 exec "$python" -m pytest -p pytest_timeout -p no:cacheprovider -o filterwarnings= \
        -m gpu --timeout 600 --junitxml "$results/tests.xml" "$@"
    ;;
study) shift && exec "$python" "$here/benchmarks/gpu_study.py" "$@" ;;
paribus) shift && exec "$python" -m paribus "$@" ;;
-*) exec "$python" "$here/benchmarks/gpu.py" "$@" ;;
*) exec "$python" "$here/benchmarks/gpu.py" --output "$results" --part "$@" ;;
esac
