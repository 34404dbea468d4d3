# Sourced by the scripts beside it: puts uv on the PATH, installed into the folder $1 where the machine has none.
# uv reads none of pip's settings, so the two that CI may need are handed over.
command -v uv >/dev/null || {
    "${PYTHON:-python3}" -m venv "$1/uv" && "$1/uv/bin/pip" install -q uv
    export PATH="$PATH:$1/uv/bin"
}
export UV_FIND_LINKS=${UV_FIND_LINKS-${PIP_FIND_LINKS-}} UV_EXTRA_INDEX_URL=${UV_EXTRA_INDEX_URL-${PIP_EXTRA_INDEX_URL-}}
