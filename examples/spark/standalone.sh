#!/usr/bin/env bash
# The data source on a standalone cluster: starts a Spark master and a worker on loopback from the installed
# PySpark, writes timers and reads their expirations there, and stops both.
#
#     examples/spark/standalone.sh DAEMON [ROWS]
#
# DAEMON is the name of a running daemon, or its runtime directory.
# The cluster's Python must be able to import wheeld: here it is the one that runs this script
# (PYSPARK_PYTHON, default: python3), with its PYTHONPATH.
set -euo pipefail

daemon=$1
rows=${2:-1000}
here=$(cd "$(dirname "$0")" && pwd)
export PYSPARK_PYTHON=${PYSPARK_PYTHON:-$(command -v python3)}
export PYSPARK_DRIVER_PYTHON=$PYSPARK_PYTHON
export SPARK_HOME=$("$PYSPARK_PYTHON" -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
export SPARK_LOCAL_IP=127.0.0.1
folder=$(mktemp -d)
pids=()

finish() {
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    for pid in "${pids[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap finish EXIT

# waits until a line of a log says what is wanted, and prints the last word of that line
await() {
    for _ in $(seq 1200); do
        if line=$(grep -m1 -o "$2" "$1" 2>/dev/null); then
            echo "${line##* }"
            return
        fi
        sleep 0.1
    done
    cat "$1" >&2
    echo "standalone.sh: $1 never said '$2'" >&2
    return 1
}

# for the background: becomes the Java process, which `finish` then ends by its id
launch() {
    exec "$SPARK_HOME/bin/spark-class" "$@" --host 127.0.0.1 --webui-port 0
}

launch org.apache.spark.deploy.master.Master --port 0 >"$folder/master.log" 2>&1 &
pids+=($!)
master=$(await "$folder/master.log" "Starting Spark master at spark://[0-9.:]*")
launch org.apache.spark.deploy.worker.Worker --cores 2 --memory 1g --work-dir "$folder/work" \
    "$master" >"$folder/worker.log" 2>&1 &
pids+=($!)
await "$folder/worker.log" "Successfully registered with master" >/dev/null

"$PYSPARK_PYTHON" "$here/write_and_read.py" "$master" "$daemon" "$folder" "$rows"
