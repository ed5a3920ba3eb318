#!/bin/sh
# commits.sh DIRECTORY: commit without end to DIRECTORY/repository and collect its garbage after
# every second commit. The number of commits that were made is in DIRECTORY/commits.
set -e
export GIT_AUTHOR_NAME=lab GIT_AUTHOR_EMAIL=lab@localhost
export GIT_COMMITTER_NAME=lab GIT_COMMITTER_EMAIL=lab@localhost
git init -q -b main "$1/repository"
cd "$1/repository"
n=0
while :; do
    n=$((n + 1))
    echo "change $n" >>history
    head -c 20000 /dev/urandom >"blob-$((n % 7))"
    git add .
    git commit -q -m "change $n"
    echo $n >"$1/commits"
    [ $((n % 2)) -ne 0 ] || git gc -q --prune=now
done
