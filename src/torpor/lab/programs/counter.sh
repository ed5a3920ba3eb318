#!/bin/sh
# counter.sh LOG SECONDS: hold a number in a variable and nowhere else, add 1 every SECONDS, and
# append "<n> <UTC time>" to LOG, which nothing ever reads back.
n=0
while :; do
    n=$((n + 1))
    echo "$n $(date -u +%H:%M:%S)" >>"$1"
    sleep "$2"
done
