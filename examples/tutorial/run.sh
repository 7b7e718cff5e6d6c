#!/usr/bin/env bash
# The tutorial, carried out: what docs/tutorial.md tells a new user to do, in an empty folder, with
# no compiler to be found, and what it prints. Each step must succeed.
#
#     examples/tutorial/run.sh WHEEL [pip options] > docs/tutorial.md
#
# WHEEL is the file that `pip wheel --no-deps .` makes. Steps whose program is not there (tmux,
# prometheus, chromium) are left out. Its servers listen on free ports of the loopback; the page has the usual.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wheel=$(realpath "$1")
shift
python=$("${PYTHON:-python3}" -c 'import sys; print(sys._base_executable)')

work=$(mktemp -d /tmp/wheeld-tutorial-XXXXXX)
jobs_started=()
finish() {
    for pid in "${jobs_started[@]}"; do kill "$pid" 2>/dev/null || true; done
    [ -z "${top_server:-}" ] || tmux -L "$top_server" kill-server 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap finish EXIT

# A path with the usual commands, and neither compiler nor anything else of this environment.
mkdir "$work/bin" "$work/run" "$work/tutorial"
for name in bash sh env cat sleep sed grep tr sort curl tmux prometheus uname; do
    if found=$(command -v "$name"); then ln -s "$found" "$work/bin/$name"; fi
done
printf '#!/bin/sh\nexec %s "$@"\n' "$python" >"$work/bin/python3"
chmod +x "$work/bin/python3"
port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
web=$(port) metrics=$(port) page=$(port) prom=$(port)
cp "$here/app.py" "$work/tutorial"
sed "s/^PORT = .*/PORT = $web/" "$here/load.py" >"$work/tutorial/load.py"

# -- how it is written ---------------------------------------------------------------------------

# Makes the same all that differs from run to run.
plain() {
    sed -E -e "s#$work/tutorial#~/tutorial#g" -e "s#$work/run#/run/user/1000#g" -e "s#$wheel#wheeld#g" \
        -e "s/:$web\b/:8000/g" -e "s/:$metrics\b/:9464/g" -e "s/:$page\b/:9465/g" -e "s/:$prom\b/:9090/g" \
        -e 's/pid( +)[0-9]+/pid\14711/g' -e 's/pid-[0-9]+-/pid-4711-/g' -e 's/clock [0-9]{3,}/clock 4711/' -e 's/ [0-9]{3,7} (active|kept)/  4711 \1/' -e 's/[0-9]+\.[0-9]+ ms/0.9 ms/g' -e 's/\x1b\[[0-9;?]*[a-zA-Z]//g' \
        -e 's/[[:space:]]+$//'
}
# Becomes the command, so that in the background its process id is the one to end.
enter() {
    cd "$work/tutorial"
    exec env -i HOME="$work" PATH="$work/tutorial/venv/bin:$work/bin" TERM=xterm-256color \
        LANG=C.UTF-8 WHEELD_RUNTIME_DIR="$work/run" COLUMNS=80 ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} \
        ${PIP_CONFIG_FILE:+PIP_CONFIG_FILE="$PIP_CONFIG_FILE"} bash -c "$1" 2>&1
}
in_folder() { (enter "$1"); }
say() { printf '\n%s\n' "$1"; }
# A command as a user types it, and what it prints; $2 is what is run where it differs from $1.
show() {
    local out status=0
    out=$(in_folder "${2:-$1}") || status=$?
    printf '\n```console\n$ %s\n%s%s```\n' "$1" "$out" "${out:+$'\n'}" | plain
    [ "$status" = "${expected:-0}" ] || { echo "exit code $status: $1: $out" >&2; exit 1; }
}
# The same for one that goes on in the background, until `$3` succeeds.
show_background() {
    enter "exec ${2:-$1}" >"$work/log-${#jobs_started[@]}" &
    local pid=$!
    jobs_started+=("$pid")
    printf '\n```console\n$ %s &\n```\n' "$1" | plain
    for _ in $(seq 300); do
        if in_folder "$3" >/dev/null 2>&1; then return; fi
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/log-$((${#jobs_started[@]} - 1))" >&2
    echo "it did not get ready: $1" >&2
    exit 1
}
has() { in_folder "$1" >/dev/null 2>&1; }

# -- the tutorial --------------------------------------------------------------------------------

cat <<'PAGE'
<!-- Written by examples/tutorial/run.sh, which carries out each step. -->
# Tutorial

Ten minutes, from an empty folder to a web service with a request timeout, a debounced mail, a nightly job and a rate limit,
which hold over all its processes. You watch it in a terminal and in a browser, get an alert when the daemon is killed, and restart the
daemon under load. All you need is Linux, Python 3.11 or newer, and a wheel file of wheeld, which `pip wheel --no-deps .` makes
in a checkout; there is nothing to compile here. The alert also needs Prometheus.
PAGE

say '## Install'
if has 'command -v cc || command -v gcc || command -v clang'; then
    echo "there is a compiler on the path" >&2
    exit 1
fi
say 'No compiler is on the path, so this prints nothing:'
expected=1 show 'command -v cc gcc clang'
say 'The wheel file is in the home folder:'
show 'python3 -m venv venv' 'python3 -m venv venv'
show 'wheel=$(echo ~/wheeld-*.whl)'
show 'venv/bin/pip install --quiet "$wheel[metrics,jobs]" fastapi gunicorn uvicorn uvicorn-worker' \
    "venv/bin/pip install --quiet --disable-pip-version-check --only-binary :all: $* '$wheel[metrics,jobs]' fastapi gunicorn uvicorn uvicorn-worker >pip.log 2>&1 || { cat pip.log; exit 1; }"
say 'The commands below are those of the environment: `source venv/bin/activate`.'

say '## Start the daemon'
say 'With figures for Prometheus on port 9464, and a page for browsers on port 9465:'
start="wheeld start --metrics 127.0.0.1:$metrics --web 127.0.0.1:$page"
show_background 'wheeld start --metrics --web' "$start" 'wheeld status'
daemon=${jobs_started[0]}
show 'wheeld status' "wheeld status | grep -v -e '^ *$' | sed -n 1,10p"

say '## A service'
say '`app.py`: each request has half a second; a mail follows a second after the last change of a cart, and each user has three
changes a minute; at three at night there is a job. The lifespan and the middleware connect each worker process to the daemon.'
printf '\n```py\n%s\n```\n' "$(cat "$here/app.py")"
say 'Run it under gunicorn with two worker processes:'
show_background 'gunicorn app:app --workers 2 --worker-class uvicorn_worker.UvicornWorker --bind 127.0.0.1:8000' \
    "gunicorn app:app --workers 2 --worker-class uvicorn_worker.UvicornWorker --bind 127.0.0.1:$web" \
    "curl --silent --fail http://127.0.0.1:$web/hello"
show 'curl --include http://127.0.0.1:8000/hello' \
    "curl --silent --include http://127.0.0.1:$web/hello | tr -d '\r' 2>/dev/null | sed -n '1p;\$p'"
say '## A request timeout'
say 'A request that takes longer is cancelled where it waits, and answered with 504:'
show 'curl --include http://127.0.0.1:8000/slow' \
    "curl --silent --include http://127.0.0.1:$web/slow | sed -n -e 's/\r//' -e '1p;\$p'"

say 'The daemon kept that timer for the process that served the request:'
show 'wheeld status' "wheeld status | grep -e fired -e pid-"

say '## A debounced job, and a rate limit'
say 'Four changes of a cart. The fourth is one too many in this minute, whichever process gets it:'
show "for i in 1 2 3 4; do curl --silent --request POST http://127.0.0.1:8000/cart/ann; echo; done" \
    "for i in 1 2 3 4; do curl --silent --request POST http://127.0.0.1:$web/cart/ann; echo; done"
say 'There is one mail, a second after the third:'
for _ in $(seq 100); do [ ! -s "$work/tutorial/done.txt" ] || break; sleep 0.1; done
show 'cat done.txt'

say '## A nightly job'
show "wheeld jobs list --json | grep -e name -e schedule -e runs"
say 'Any of the workers will run it at three, and once. Have one run it now:'
show 'wheeld jobs run nightly'
for _ in $(seq 100); do ! grep -q night "$work/tutorial/done.txt" || break; sleep 0.1; done
show 'cat done.txt'

if has 'wheeld top --help' && has 'command -v tmux'; then
    say '## Watch it'
    say '`wheeld top` in a terminal; here it is while ten requests time out:'
    top_server="wheeld-tutorial-$$"
    in_folder "tmux -L $top_server new-session -d -x 80 -y 30 'wheeld top'"
    pane="tmux -L $top_server capture-pane -p"
    for _ in $(seq 100); do ! in_folder "$pane" | grep -q WORKER || break; sleep 0.2; done
    for _ in $(seq 10); do in_folder "curl --silent http://127.0.0.1:$web/slow" >/dev/null & done
    for _ in $(seq 50); do ! in_folder "$pane" | grep -q 'late now .*p99' || break; sleep 0.1; done
    show 'wheeld top' "$pane"
    tmux -L "$top_server" kill-server
    top_server=
fi

say 'The page at `http://127.0.0.1:9465/` [shows the same in a browser](how-to/top.md#in-a-browser), with the jobs, and finds timers by their keys. Read by a browser without a window:'
if browser=$(command -v chromium); then
    seen() { "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/chromium" --virtual-time-budget=5000 --dump-dom "http://127.0.0.1:$page/" 2>/dev/null; }
    printf '\n```console\n$ chromium --headless --virtual-time-budget=5000 --dump-dom http://127.0.0.1:9465/ | sed "s/<wbr>//g" | grep --only-matching -e ">clock ok<" -e "shop/[a-z_]*"\n%s\n```\n' \
        "$(seen | sed 's/<wbr>//g' | grep --only-matching -e '>clock ok<' -e 'shop/[a-z_]*')"
fi

alerts='venv/share/wheeld/prometheus/wheeld-alerts.yml'
sed -i 's/for: 1m$/for: 2s/' "$work/tutorial/$alerts" # nobody waits here for the minute of the page
if has 'command -v prometheus'; then
    say '## Be told when it is gone'
    say 'Prometheus, with the alerts that come with the package; each has a section in the [runbook](runbook.md):'
    printf 'global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%s]\nscrape_configs:\n  - job_name: wheeld\n    static_configs: [{targets: ["127.0.0.1:%s"]}]\n' \
        "$alerts" "$metrics" >"$work/tutorial/prometheus.yml"
    show 'cat prometheus.yml'
    api="http://127.0.0.1:$prom/api/v1"
    show_background 'prometheus --config.file prometheus.yml' \
        "prometheus --config.file prometheus.yml --storage.tsdb.path data --web.listen-address 127.0.0.1:$prom" \
        "curl --silent '$api/query' --data-urlencode 'query=up{job=\"wheeld\"} == 1' | grep -q '\"value\"'"
    show "curl --silent http://127.0.0.1:9090/api/v1/query --data-urlencode 'query=wheeld_timers_fired_total'" \
        "curl --silent $api/query --data-urlencode 'query=wheeld_timers_fired_total' | grep -o '\"__name__\":\"[a-z_]*\"' | sort -u"
    say 'Kill the daemon. The service goes on: while nobody answers, its own event loops keep the deadlines.'
    printf '\n```console\n$ kill -9 %%1\n```\n'
    kill -9 "$daemon"
    wait "$daemon" 2>/dev/null || true
    show 'curl --include http://127.0.0.1:8000/slow' \
        "curl --silent --include http://127.0.0.1:$web/slow | sed -n -e 's/\r//' -e '1p;\$p'"
    say 'After a minute there is an alert:'
    for _ in $(seq 180); do ! in_folder "curl --silent $api/alerts" | grep -q '"state":"firing"' || break; sleep 0.5; done
    show 'curl --silent http://127.0.0.1:9090/api/v1/alerts' \
        "curl --silent $api/alerts | grep -o -e '\"alertname\":\"[A-Za-z]*\"' -e '\"summary\":\"[^\"]*\"' -e '\"state\":\"[a-z]*\"'"
    say 'The next daemon takes the timers over; the workers connect to it by themselves:'
    show_background 'wheeld start --metrics --web' "$start" 'wheeld status'
    show "wheeld jobs list --json | grep -e name -e schedule -e runs"
fi

say '## Restart it under load'
say '[`load.py`](../examples/tutorial/load.py) makes requests for eight seconds and keeps account of each; in the middle, the daemon is restarted:'
enter 'exec python3 load.py 8' >"$work/load.log" &
load=$!
sleep 4
printf '\n```console\n$ python3 load.py 8 &\n```\n'
show 'wheeld restart'
wait "$load" || { cat "$work/load.log" >&2; exit 1; }
printf '\n```console\n%s\n```\n' "$(cat "$work/load.log")"
say 'No request was lost, none timed out early or not at all: the timers stayed in shared memory while the daemon became
another program, and the workers never noticed.'

say '## Stop'
show 'wheeld stop'
cat <<'PAGE'

## Where to go next

- [What a worker can do](timers.md), and the promises to it.
- [The same for other frameworks](how-to/frameworks.md): WSGI, Flask, Django, aiohttp, trio.
- [Tests in which an hour passes at once](testing.md).
- [The daemon as a service](../systemd/README.md), [in containers](containers.md).
PAGE
