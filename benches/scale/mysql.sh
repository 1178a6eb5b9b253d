#!/bin/sh
# What a row costs MySQL, with the real statements: the CPU of the server for raising rows that are there, 512 to a statement, and
# for reading rows that have changed, three regions to a cell, for docs/scale.md. Needs mariadb-server, mariadb-client and bc.
# Starts a server of its own with a table of 150,000 rows, and stops it.
set -eu
PATH=$PATH:/usr/sbin
root=$(cd "$(dirname "$0")/../.." && pwd)
directory=$(mktemp -d /tmp/rows.XXXXXX)
socket=$directory/socket
mariadb-install-db --user="$(id -un)" --datadir="$directory" --auth-root-authentication-method=normal >/dev/null 2>&1
mariadbd --user="$(id -un)" --datadir="$directory" --socket="$socket" --skip-networking --innodb-buffer-pool-size=512M \
    2>"$directory/log" &
server=$!
until mariadb -uroot -S "$socket" -e 'SELECT 1' >/dev/null 2>&1; do sleep 0.2; done
mariadb -uroot -S "$socket" -e 'CREATE DATABASE rows_of_regions'
run() { mariadb -uroot -S "$socket" -N rows_of_regions; }
cat "$root"/migrations/*.sql | run

# Statements that raise the rows of so many keys in a region, so often, each time by a hit.
publish() { # keys, times, region, the first count
    echo 'SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;'
    awk -v keys="$1" -v times="$2" -v region="$3" -v first="$4" '
        { statement = statement $0 "\n" }
        END {
            split(statement, part, ":rows")
            for (time = 0; time < times; time++) for (from = 0; from < keys; from += 512) {
                rows = ""
                for (key = from; key < keys && key < from + 512; key++)
                    rows = rows sprintf("%s(\"edge\", \"api_key\", \"user-%07d\", 60000, 29000000, \"%s\", %d, 0, %s, %s)",
                        key > from ? "," : "", key, region, first + time, "UNIX_TIMESTAMP() * 1000 + 180000",
                        "FLOOR(UNIX_TIMESTAMP(SYSDATE(3)) * 1000)")
                print part[1] rows part[2] ";"
            }
        }' "$root/src/global/sql/publish.sql"
}
# CPU of the server in hundredths of a second.
cpu() { awk '{print $14 + $15}' "/proc/$server/stat"; }

for region in eu us ap; do publish 50000 1 "$region" 1 | run; done
publish 10000 20 eu 2 >"$directory/publish.sql"
before=$(cpu) began=$(date +%s%3N)
run <"$directory/publish.sql"
took=$(($(date +%s%3N) - began))
echo "a row that is raised: $(echo "($(cpu) - $before) * 10000 / 200000" | bc) us; $((200000 * 1000 / took)) rows a second"

# So that only 10,000 of the cells have changed.
echo "UPDATE ratelimit_window_counts SET updated_at = 1 WHERE identifier >= 'user-0010000';" | run
sed -e 's/:since_ms/1000/' -e 's/:now_ms/1000/' "$root/src/global/sql/changed_since.sql" >"$directory/import.sql"
before=$(cpu) rows=0
for _ in 1 2 3 4 5 6 7 8 9 10; do rows=$((rows + $(run <"$directory/import.sql" | wc -l))); done
echo "a row that is read: $(echo "scale = 1; ($(cpu) - $before) * 10000 / $rows" | bc) us"
kill "$server"
wait "$server" || true
rm -rf "$directory"
