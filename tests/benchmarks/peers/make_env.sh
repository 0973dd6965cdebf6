#!/usr/bin/env bash
# Build the environments in which the peers run: `.env` (TensorFlow, JAX, Keras, pytensor, numba) and `.env-torch`
# (PyTorch, Keras), beside this script. Both are large (some 3 GB) and git ignores them.
#
#   make_env.sh             both
#   make_env.sh mlserver    .env-mlserver, with which tests/benchmarks/serving/run.py compares the model server
#   make_env.sh main        only .env
#   make_env.sh torch       only .env-torch
#
# PEERS_PYTHON        the Python to build with (default: python3.11, else python3)
# PEERS_TORCH_INDEX   a package index that serves the CPU build of PyTorch. Where pip's default index serves the CUDA
#                     build, set it to PyTorch's own CPU index: the CUDA build works too, but weighs gigabytes.
#
# Versions are pinned because a ratio against an unnamed version says nothing. TensorFlow and PyTorch live apart because
# each brings its own OpenMP run time and their requirements on shared packages drift.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
what=${1:-all}
python=${PEERS_PYTHON:-$(command -v python3.11 || command -v python3)}

case $what in all | main | torch | mlserver) ;; *)
    echo "make_env.sh: unknown part '$what'; expected all, main, torch or mlserver" >&2
    exit 2
    ;;
esac

make_venv() { # <folder>: an empty environment with a current pip, unless there is one already
    [[ -x $1/bin/python ]] || "$python" -m venv "$1"
    "$1/bin/python" -m pip install --quiet --upgrade pip
}

if [[ $what == mlserver ]]; then
    make_venv "$here/.env-mlserver"
    "$here/.env-mlserver/bin/python" -m pip install --quiet mlserver==1.7.1
    "$here/.env-mlserver/bin/python" -c 'import mlserver; print(mlserver.__version__)'
    exit
fi

if [[ $what != torch ]]; then
    make_venv "$here/.env"
    "$here/.env/bin/python" -m pip install --quiet \
        numpy==2.4.6 tensorflow-cpu==2.21.0 jax==0.10.2 jaxlib==0.10.2 keras==3.15.1
    # pytensor and numba give two more rows (a compiled loop, a floor); the rest works without them.
    "$here/.env/bin/python" -m pip install --quiet pytensor==3.0.7 numba==0.65.1 ||
        echo "make_env.sh: pytensor or numba did not install; their rows will be missing" >&2
    "$here/.env/bin/python" -c 'import tensorflow, jax, keras, numpy; print(tensorflow.__version__, jax.__version__, keras.__version__, numpy.__version__)' 2>/dev/null
fi

if [[ $what != main ]]; then
    make_venv "$here/.env-torch"
    index=()
    [[ -z ${PEERS_TORCH_INDEX:-} ]] || index=(--index-url "$PEERS_TORCH_INDEX")
    "$here/.env-torch/bin/python" -m pip install --quiet numpy==2.4.6
    "$here/.env-torch/bin/python" -m pip install --quiet "${index[@]}" torch==2.13.0
    "$here/.env-torch/bin/python" -m pip install --quiet keras==3.15.1
    "$here/.env-torch/bin/python" -c 'import torch, numpy; print(torch.__version__, numpy.__version__)'
fi
