#!/bin/sh
# A complete pull worker in shell, with curl: ./worker.sh DIRECTORY
#
# The directory has a program for each task, with the task's name. It gets the payload, as JSON, on its standard input,
# and the job's id and attempt in MAINSPRING_JOB and MAINSPRING_ATTEMPT. What it prints is the job's result: JSON if it
# begins with { or [, else text. Of its standard error, the first 40,000 bytes are reported. Exit code 0: done; 75: try again in a minute; 65: failed for good; any other: failed.
# Settings: MAINSPRING_URL (default http://127.0.0.1:8340), MAINSPRING_TOKEN.
set -u

handlers=${1:?usage: worker.sh DIRECTORY}
url=${MAINSPRING_URL:-http://127.0.0.1:8340}
worker="sh-$(hostname)-$$"
work=$(mktemp -d)
stopping=
child=

# quoted: the text of standard input as a JSON string
quoted() {
    printf '"'
    LC_ALL=C tr -d '\000-\010\013\014\016-\037' |
        LC_ALL=C sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/	/\\t/g' -e 's/\r/\\r/g' | awk '{ printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }'
    printf '"'
}

# excerpt FILE: its beginning, without what is not UTF-8, such as half a character at the end
excerpt() {
    head -c 40000 "$1" | if command -v iconv >/dev/null; then
        iconv -c -f UTF-8 -t UTF-8 2>/dev/null
    else
        LC_ALL=C tr -cd '\t\n\r\040-\176'
    fi
}

# post PATH BODY [OPTION…]: send JSON; $work/answer has the answer and $status its status. It fails unless that is a 2xx
post() {
    path=$1
    printf '%s' "$2" >"$work/body"
    shift 2
    : >"$work/answer"
    status=$(curl -sS --max-time 45 -o "$work/answer" -w '%{http_code}' -H 'content-type: application/json' \
        ${MAINSPRING_TOKEN:+-H "authorization: Bearer $MAINSPRING_TOKEN"} "$@" --data-binary @"$work/body" "$url$path") ||
        status=000
    case $status in
    2*) ;;
    *) cat "$work/answer" >&2; return 1 ;;
    esac
}

# refused: whether the service has refused the last request, so that it is in vain to repeat it
refused() {
    case $status in
    429) return 1 ;;
    4*) return 0 ;;
    *) return 1 ;;
    esac
}

# report NEWS: about the job in hand; repeated while the service is away
report() {
    item="{\"id\":\"$id\",\"token\":$token${1:+,$1}}"
    pause=1
    until post /v1/leases:report "{\"worker\":\"$worker\",\"items\":[$item]}"; do
        ! refused || return 1
        sleep "$pause"
        pause=$((pause < 8 ? pause * 2 : 10))
    done
    answer=$(cat "$work/answer")
    case $answer in
    *'"reply":"invalid"'*) echo "$answer" >&2; return 1 ;;
    *'"reply":"stale"'* | *'"reply":"cancelled"'*)
        gone=1
        [ -z "$child" ] || kill "$child" 2>/dev/null
        ;;
    esac
}

run() {
    MAINSPRING_JOB=$id MAINSPRING_ATTEMPT=$attempt "$handlers/$task" <"$work/payload" >"$work/out" 2>"$work/err" &
    child=$!
    ticks=0 gone=
    while kill -0 "$child" 2>/dev/null; do
        sleep 0.1
        ticks=$((ticks + 1))
        [ $((ticks % 50)) -ne 0 ] || report '' # a sign of life every five seconds
    done
    wait "$child"
    code=$?
    child=
    [ -z "$gone" ] || code=cancelled
    case $code in
    cancelled) report '"cancelled":{"reason":"stopped by the worker"}' ;;
    0)
        case $(head -c 1 "$work/out") in
        '{' | '[') result=$(cat "$work/out") ;;
        *) result=$(quoted <"$work/out") ;;
        esac
        report "\"done\":{\"result\":$result}" ||
            report '"failed":{"type":"BadResult","message":"the result is neither JSON nor UTF-8, or too large"}'
        ;;
    75) report '"snooze":{"delay":60}' ;;
    *)
        [ "$code" -eq 65 ] && retry=false || retry=true
        failed="\"failed\":{\"type\":\"Exit$code\",\"retry\":$retry,\"message\""
        report "$failed:$(excerpt "$work/err" | quoted)}" || report "$failed:\"its error could not be reported\"}"
        ;;
    esac
}

leave() {
    post /v1/leases:leave "{\"worker\":\"$worker\"}"
    rm -rf "$work"
}

trap 'stopping=1' TERM INT
trap leave EXIT
tasks=$(for handler in "$handlers"/*; do [ -x "$handler" ] && printf '"%s",' "${handler##*/}"; done)
claim="{\"worker\":\"$worker\",\"tasks\":[${tasks%,}],\"limit\":1,\"wait\":5}"
echo "$worker works for $url: ${tasks%,}" >&2
while [ -z "$stopping" ]; do
    key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    # The service may have claimed a job although its answer was lost: with the same key, the answer has that job again.
    until post /v1/leases "$claim" -H "idempotency-key: $key" -H 'accept: text/tab-separated-values' -D "$work/headers"; do
        ! refused || exit 1
        [ -z "$stopping" ] || exit 0
        sleep 1
    done
    mv "$work/answer" "$work/jobs"
    tab=$(printf '\t')
    while IFS=$tab read -r id token attempt task payload; do
        printf '%s' "$payload" >"$work/payload"
        run
    done <"$work/jobs"
    case $(grep -i '^x-order:' "$work/headers" 2>/dev/null) in
    *[Tt]erminate*) break ;;
    *[Qq]uiet*) sleep 1 ;; # until an operator says :continue, claims are answered at once
    esac
done
exit 0
