#!/bin/sh
# What a heartbeat costs Redis: the CPU of redis-server for the script and for the two INFO that go with it, for docs/scale.md.
# Needs redis-server and bc. Starts a server of its own, and stops it.
set -eu
socket=$(mktemp -u /tmp/heartbeats.XXXXXX)
redis-server --port 0 --unixsocket "$socket" --save '' --daemonize yes >/dev/null
until redis-cli -s "$socket" ping >/dev/null 2>&1; do sleep 0.1; done
script=$(redis-cli -s "$socket" script load "$(cat "$(dirname "$0")/../../src/regional/redis/scripts/beat.lua")")
calls=30000

cpu() { redis-cli -s "$socket" info cpu | tr -d '\r' | awk -F: '/^used_cpu_(user|sys):/ {sum += $2} END {print sum}'; }
measure() { # what, how many processes, the command
    what=$1 processes=$2
    shift 2
    before=$(cpu)
    redis-benchmark -s "$socket" -q -n "$calls" -c 20 -r "$processes" "$@" >/dev/null
    echo "$what: $(echo "($(cpu) - $before) * 1000000 / $calls" | bc) us"
}

for processes in 10 100 1000; do
    redis-cli -s "$socket" flushall >/dev/null
    measure "heartbeat of one of $processes processes" "$processes" \
        EVALSHA "$script" 2 tidegate:3:processes 'tidegate:3:incarnation:{tidegate:3:processes}' __rand_int__ beat
done
measure 'INFO server' 1 INFO server
measure 'INFO memory' 1 INFO memory
redis-cli -s "$socket" shutdown nosave
