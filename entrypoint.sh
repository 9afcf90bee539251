#!/bin/sh
# From a runner to `endstate "$@"`: finds a Python, makes or reuses a private environment, and becomes it.
#
# Nothing that lies in the workspace has a say: pull-request code may have put it there. And the last act
# is `exec`, since the runner signals its direct child alone.
#
# The package is copied into the environment rather than built, which needs no build backend; and rather
# than left where it is, since its byte code then stays warm and a release that is moved in the middle of
# a run changes nothing beneath it.
set -eu
unset CDPATH
LC_ALL_GIVEN=${LC_ALL-unset} PATH_GIVEN=$PATH

child='' made='' log=''

# --- What is said ----------------------------------------------------------------------------------

# A message must not end its line early, or begin a command of the runner's.
escaped() { printf '%s' "$1" | sed -e 's/%/%25/g' | tr '\r\n' '  '; }

say() { # say error|warning TEXT
    if [ "${GITHUB_ACTIONS-}" = true ]; then
        printf '::%s title=endstate::%s\n' "$1" "$(escaped "$2")"
    else
        printf 'endstate: %s\n' "$2" >&2
    fi
}

finish() { # finish CODE CONCLUSION
    trap - EXIT
    tidy
    if [ -n "${GITHUB_OUTPUT-}" ]; then
        printf 'conclusion=%s\n' "$2" >>"$GITHUB_OUTPUT" || true
    fi
    exit "$1"
}

fail() {
    say error "$1 Nothing was run and nothing was spent. $2"
    finish 2 failed
}

# What a tool said, without passwords in addresses and without commands to the runner.
show_log() { sed -e 's#//[^/@ ]*@#//***@#g' -e 's/^/  | /' "$log" | tail -n 20 >&2; }

tidy() {
    if [ -n "$made" ]; then rm -rf "$made"; fi
    if [ -n "$log" ]; then rm -f "$log"; fi
}

interrupted() {
    if [ -n "$child" ]; then kill "$child" 2>/dev/null || true; fi
    say error "Interrupted while Python was made ready. Nothing was run and nothing was spent. A re-run begins here."
    finish 75 interrupted
}

# In the background, since a shell hears a signal only when what it waits for in the foreground has ended.
patiently() {
    "$@" >>"$log" 2>&1 &
    child=$!
    if wait "$child"; then child=''; else
        child=''
        return 1
    fi
}

# --- Where we are ----------------------------------------------------------------------------------

# Hundredths of a second, without starting a process where the kernel tells.
now() {
    if [ -r /proc/uptime ]; then
        read -r seconds _ </proc/uptime
        printf '%s%s' "${seconds%.*}" "${seconds#*.}"
    else
        printf '%s00' "$(date +%s)"
    fi
}

outside_workspace() { # the entries of PATH that are absolute and not below the workspace
    kept=''
    set -f
    IFS=:
    for entry in $PATH_GIVEN; do
        case $entry in
        "${GITHUB_WORKSPACE:-/dev/null}" | "${GITHUB_WORKSPACE:-/dev/null}"/*) ;;
        /*) kept=$kept${kept:+:}$entry ;;
        esac
    done
    unset IFS
    set +f
    printf '%s' "$kept"
}

# The settings of an administrator that say where packages come from and whom to trust; all else of
# these families could lead us elsewhere.
forget_settings() {
    for name in $(env | sed -n 's/^\(P[YI][TP][A-Z0-9_]*\)=.*/\1/p; s/^\(UV_[A-Z0-9_]*\)=.*/\1/p'); do
        case $name in
        PIP_INDEX_URL | PIP_EXTRA_INDEX_URL | PIP_FIND_LINKS | PIP_TRUSTED_HOST | PIP_CERT | PIP_CLIENT_CERT) ;;
        UV_DEFAULT_INDEX | UV_INDEX | UV_INDEX_* | UV_EXTRA_INDEX_URL | UV_FIND_LINKS) ;;
        UV_NATIVE_TLS | UV_SYSTEM_CERTS | UV_PYTHON_DOWNLOADS | UV_PYTHON_INSTALL_MIRROR) ;;
        PYTHON* | PIP_* | UV_*) unset "$name" ;;
        esac
    done
    unset VIRTUAL_ENV __PYVENV_LAUNCHER__ ACTIONS_ID_TOKEN_REQUEST_TOKEN ACTIONS_ID_TOKEN_REQUEST_URL
}

# --- Python ----------------------------------------------------------------------------------------

# Says "KEY PATH": what an environment has to agree with, and the interpreter behind shims and environments.
# Ends with 9 where Python is too old, having said its version.
probe='
import sys
if sys.version_info < (3, 11):
    print("%d.%d.%d" % sys.version_info[:3])
    sys.exit(9)
import hashlib, os, sysconfig
here = sys.argv[1]
python = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
digest = hashlib.sha256()
def add(data):
    digest.update(len(data).to_bytes(8, "big") + data)
for fact in (sys.version, sysconfig.get_config_var("SOABI"), sysconfig.get_platform(), python):
    add(str(fact).encode())
paths = [os.path.join(here, name) for name in sys.argv[2].split()]
for folder, folders, names in os.walk(os.path.join(here, "src", "endstate_action")):
    folders[:] = sorted(name for name in folders if name != "__pycache__")
    paths += [os.path.join(folder, name) for name in sorted(names)]
for path in paths:
    add(os.fsencode(os.path.relpath(path, here)))
    with open(path, "rb") as file:
        add(file.read())
print(digest.hexdigest()[:16], python)
'

python='' key='' too_old=''

usable() { # usable CANDIDATE: sets python and key
    command -v "$1" >/dev/null 2>&1 || return 1
    code=0
    facts=$("$1" -I -S -c "$probe" "$here" "$locks" 2>/dev/null) || code=$?
    case $code in
    0) key=${facts%% *} python=${facts#* } ;;
    9) too_old="$too_old${too_old:+, }$facts ($1)" ;;
    esac
    return "$code"
}

find_python() {
    for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if usable "$name"; then return; fi
    done
    for cache in "${RUNNER_TOOL_CACHE-}" "${AGENT_TOOLSDIRECTORY-}"; do
        for name in "${cache:-/dev/null}"/Python/*/x64 "${cache:-/dev/null}"/Python/*/arm64; do
            # The mark of a download that was finished.
            if [ -e "$name.complete" ] && usable "$name/bin/python3"; then return; fi
        done
    done
    if command -v uv >/dev/null 2>&1; then
        if usable "$(uv --no-config python find --no-project '>=3.11' 2>/dev/null)"; then return; fi
        case ${UV_PYTHON_DOWNLOADS:-automatic} in
        automatic | true)
            patiently uv --no-config python install 3.13 || show_log
            if usable "$(uv --no-config python find --no-project '>=3.11' 2>/dev/null)"; then return; fi
            ;;
        esac
    fi
    fail "There is no Python 3.11 or newer on this runner${too_old:+; too old: $too_old}." \
        "Add a step with actions/setup-python before this one, or install Python 3.11 or newer, or uv, on the runner."
}

# --- The environment -------------------------------------------------------------------------------

# Somebody else's could hold anything.
is_ours() { [ -n "$(find "$1" -prune -type d -user "$(id -u)" 2>/dev/null)" ]; }

# Says which files an environment has, by name and size. Byte code comes and goes.
listing='
import hashlib, os, sys
digest = hashlib.sha256()
for folder, folders, names in os.walk(sys.argv[1]):
    folders[:] = sorted(name for name in folders if name != "__pycache__")
    for name in sorted(names):
        path = os.path.join(folder, name)
        if not path.endswith(("/.files", ".pyc")):
            digest.update(ascii((os.path.relpath(path, sys.argv[1]), os.lstat(path).st_size)).encode())
print(digest.hexdigest())
'

files_of() { "$python" -I -S -c "$listing" "$1"; }

# It got its name last, so it was whole; but a clean-up of the machine may have taken files since.
is_whole() {
    is_ours "$1" && [ -x "$1/bin/python" ] && [ -r "$1/.files" ] && [ "$(files_of "$1")" = "$(cat "$1/.files")" ]
}

# Sets environment, or ends with 1 where there is none that can be used.
find_environment() {
    for root in "$@"; do
        environment=$root/$folder/$key
        if is_whole "$environment"; then return; fi
    done
    return 1
}

# Libraries cannot be loaded from a mount without that right, nor programs started there.
may_execute() { printf '#!/bin/sh\n' >"$1/.try" && chmod +x "$1/.try" && "$1/.try" && rm "$1/.try"; }

# Sets environment and made, a place beside it that nobody else uses.
find_place() {
    for root in "$@"; do
        environment=$root/$folder/$key
        if (umask 077 && mkdir -p "$root/$folder") 2>/dev/null && is_ours "$root/$folder" &&
            made=$(mktemp -d "$root/$folder/.making-XXXXXX" 2>/dev/null); then
            if (may_execute "$made") 2>/dev/null; then return; fi
            rm -rf "$made"
        fi
    done
    made=''
    fail "There is no place for Python's packages: $(printf '%s, ' "$@")each is read-only, full, mounted noexec or somebody else's." \
        "Give RUNNER_TEMP or RUNNER_TOOL_CACHE a place that the runner's user may write to and execute from."
}

# pip in isolation reads no variables, so these are said to it; not as arguments, which everybody can read.
index_options() {
    for url in ${PIP_INDEX_URL-}; do printf -- '--index-url %s\n' "$url"; done
    for url in ${PIP_EXTRA_INDEX_URL-}; do printf -- '--extra-index-url %s\n' "$url"; done
    for url in ${PIP_FIND_LINKS-}; do printf -- '--find-links %s\n' "$url"; done
    for host in ${PIP_TRUSTED_HOST-}; do printf -- '--trusted-host %s\n' "$host"; done
}

# Runs in the background only, where `exec` makes pip the child that a signal ends.
pip_install() { # pip_install PYTHON INTO -r FILE ...
    with=$1 into=$2
    shift 2
    exec "$with" -I -m pip --isolated --no-input --disable-pip-version-check --retries 2 --timeout 15 \
        ${PIP_CERT:+--cert "$PIP_CERT"} ${PIP_CLIENT_CERT:+--client-cert "$PIP_CLIENT_CERT"} ${into:+--python "$into"} \
        install --quiet --no-compile --no-deps --require-hashes -r /dev/stdin "$@" <<END
$(index_options)
END
}

# uv for its speed; pip where it is not, or where it is set up for this network and uv is not.
install_packages() {
    set --
    for lock in $locks; do set -- "$@" -r "$here/$lock"; done
    if command -v uv >/dev/null 2>&1; then
        if patiently uv --no-config pip install --quiet --no-deps --require-hashes --python "$made/bin/python" \
            "$@"; then return; fi
    fi
    if "$python" -I -c 'import pip' 2>/dev/null; then
        patiently pip_install "$python" "$made/bin/python" "$@"
    elif "$python" -I -S -c 'import ensurepip' 2>/dev/null; then
        patiently "$made/bin/python" -I -m ensurepip && patiently pip_install "$made/bin/python" '' "$@"
    else
        fail "There is neither uv nor pip nor ensurepip for $python to install packages with." \
            "Install uv or pip (Debian: python3-venv) on the runner, or add a step with actions/setup-python before this one."
    fi
}

disk_is_full() {
    fail "Python's packages could not be written, since the disk is full or read-only." \
        "Free some space under ${environment%/*}, and re-run."
}

# What a tool said, and the cause that it named where that is none of the tool's own.
explain() {
    show_log
    if grep -qiE 'no space left on device|disk quota exceeded|read-only file system' "$log"; then disk_is_full; fi
}

make_environment() {
    patiently "$python" -I -S -m venv --without-pip "$made" || {
        explain
        fail "No environment for Python's packages could be made with $python." \
            "Install Python's venv module (Debian: python3-venv), or add a step with actions/setup-python."
    }
    install_packages || {
        explain
        if grep -qiE 'hash mismatch|do not match the hashes' "$log"; then
            fail "A package that the index gave is not the one that this release was tested with, so it was not installed." \
                "Ask whoever keeps the package index (or proxy) of this runner; a re-run helps only if a download was cut."
        fi
        fail "The Python packages that endstate needs could not be installed, see the lines above." \
            "Let the runner reach a package index, or name one in UV_DEFAULT_INDEX or PIP_INDEX_URL, and re-run."
    }
    cp -R "$here/src/endstate_action" "$made"/lib/python3*/site-packages/ || disk_is_full
    files_of "$made" >"$made/.files" || disk_is_full
    if ! put_in_place && ! is_whole "$environment"; then
        # What has the name is damaged: a second rename finds it free.
        if is_ours "$environment"; then rm -rf "$environment" || true; fi
        put_in_place || is_whole "$environment" ||
            fail "The environment $environment could not be put in place." "Remove it, and re-run."
    fi
}

# A rename that fails where the name is taken: another step may have been faster, and made the same.
put_in_place() {
    "$python" -I -S -c 'import os, sys; os.rename(*sys.argv[1:])' "$made" "$environment" 2>/dev/null && made=''
}

# --- The story -------------------------------------------------------------------------------------

case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
here=$(cd -P -- "$here" && pwd)
cd /
started=$(now)
trap interrupted INT TERM HUP
trap tidy EXIT
PATH=$(outside_workspace)
export LC_ALL=C

case $(uname -s) in
MINGW* | MSYS* | CYGWIN* | Windows*) fail "Windows is not supported." "Use a Linux runner: \`runs-on: ubuntu-latest\`." ;;
esac
forget_settings
# Object stores take a package of 40 MB, which is installed for who names one.
locks=requirements.lock
case ${INPUT_STORE-} in s3://* | gs://* | az://*) locks="$locks requirements-objectstore.lock" ;; esac
# A container shares the tool cache with its host, where the runner is another user.
folder=endstate-action-$(id -u)
temp=${RUNNER_TEMP:-${TMPDIR:-/tmp}}
tool_cache=${RUNNER_TOOL_CACHE:-${AGENT_TOOLSDIRECTORY:-$temp}}
log=$(mktemp "$temp/endstate-XXXXXX" 2>/dev/null || mktemp 2>/dev/null) ||
    fail "No temporary file can be written." "Make $temp writable for the runner's user, and look whether the disk is full."
find_python
# The watcher checks nothing out.
if [ "${1-}" = action ] && ! command -v git >/dev/null 2>&1; then
    say warning "There is no git on this runner. Install it, or use an image that has it."
fi

how=reused
if ! find_environment "$tool_cache" "$temp"; then
    how=made
    find_place "$tool_cache" "$temp"
    make_environment
fi
tidy
made='' log=''

took=$(($(now) - started))
printf 'endstate: Python environment %s in %d.%02d s (%s)\n' "$how" "$((took / 100))" "$((took % 100))" "$python" >&2
PATH=$PATH_GIVEN
if [ "$LC_ALL_GIVEN" = unset ]; then unset LC_ALL; else LC_ALL=$LC_ALL_GIVEN; fi
unset LC_ALL_GIVEN PATH_GIVEN
exec "$environment/bin/python" -I -m endstate_action "$@"
