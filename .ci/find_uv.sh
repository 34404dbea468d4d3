# Sourced by the scripts beside it: puts uv on the PATH, installed into the folder $1 where the machine has none.
# uv does not read pip's settings: folders of wheels and further indexes are handed over (lists of folders with commas).
command -v uv >/dev/null || {
    "${PYTHON:-python3}" -m venv "$1/uv" && "$1/uv/bin/pip" install -q uv || return 1
    export PATH="$PATH:$1/uv/bin"
}
[ -z "${PIP_FIND_LINKS-}" ] || export UV_FIND_LINKS=${UV_FIND_LINKS-${PIP_FIND_LINKS// /,}}
[ -z "${PIP_EXTRA_INDEX_URL-}" ] || export UV_EXTRA_INDEX_URL=${UV_EXTRA_INDEX_URL-$PIP_EXTRA_INDEX_URL}
