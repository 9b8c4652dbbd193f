#!/usr/bin/env bash
# Shows the main job on a sample cluster: waits, orders, a kill in the middle of
# a wait, and a wait that goes on and ends on time. Every thing it shows is also
# checked; the first that is not so ends it with an exit code other than 0.
#
# It needs bin/reprieved and bin/reprieve (make build), bash and coreutils. All it
# writes is in a folder of its own, and its ports are its own, so that several
# can run side by side.
set -euo pipefail
export LC_ALL=C
unset "${!REPRIEVE_@}"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$(cd "$here/../.." && pwd)/bin
export REPRIEVE_CLUSTER=demo
declare -A order_at order_due pod_of # by pod: when its order came, its due instant; by eviction: its pod
service='' feeder='' executor='' step=0 sent=0

# ---- words, time, fields

say() {
  step=$((step + 1))
  printf '\n%d. %s\n' "$step" "$*"
}

show() { # a command, and what it prints
  local line
  printf '   $ reprieve %s\n' "$*"
  "$bin/reprieve" "$@" | while IFS= read -r line; do printf '   %s\n' "$line"; done
}

note() { printf '   -> %s\n' "$*"; }

die() {
  printf '\ndemo: NOT SO: %s\n' "$*" >&2
  exit 1
}

now_ms() { echo $(($(date +%s%N) / 1000000)); }
to_ms() { echo $(($(date -d "$1" +%s%N) / 1000000)); } # of a timestamp of -o json

field() { # NAME JSON: the first text field of that name
  [[ $2 =~ \"$1\":\ ?\"([^\"]*)\" ]] && echo "${BASH_REMATCH[1]}"
}

open() { # POD: its open eviction as JSON
  "$bin/reprieve" get evictions --pod "$1" -o json 2>>"$work/cli.log"
}

# ---- the sample cluster: what kubectl's watch streams would write

event() { # STREAM LINE
  printf '%s\n' "$2" >&"$1"
}

list() { # FILE STREAM: the whole list, as a watch begins
  local line
  while IFS= read -r line; do event "$2" "$line"; done <"$here/$1"
}

line_of() { # FILE NAME: the ADDED event of an object
  local line
  while IFS= read -r line; do
    if [[ $line == *"\"name\":\"$2\""* ]]; then
      echo "$line"
      return
    fi
  done <"$here/$1"
  return 1
}

taint() { # NODE: adds a NoExecute taint
  local line
  line=$(line_of nodes.jsonl "$1")
  line=${line/ADDED/MODIFIED}
  event "$nodes" "${line/\"taints\":\[\]/\"taints\":[{\"key\":\"example.com/maintenance\",\"effect\":\"NoExecute\",\"timeAdded\":\"$(date -u +%FT%TZ)\"\}]}"
}

# ---- the executor: its orders and answers come through a fifo

# executed takes one line of `reprieve execute -o json`. A pod that was evicted
# leaves the cluster, so the watch stream says that it was deleted.
executed() {
  local id pod line
  id=$(field eviction_id "$1")
  case $(field event "$1") in
  order)
    pod=$(field name "${1#*\"evict_pod\":}")
    sent=$((sent + 1))
    pod_of[$id]=$pod
    order_at[$pod]=$(now_ms)
    order_due[$pod]=$(to_ms "$(field due_time "$1")")
    note "order to the executor: evict $pod, $((order_at[$pod] - order_due[$pod])) ms after its due instant"
    ;;
  answer)
    pod=${pod_of[$id]}
    line=$(line_of pods.jsonl "$pod")
    event "$pods" "${line/ADDED/DELETED}"
    note "the executor answers $(field outcome "$1"); $pod is gone from the cluster"
    ;;
  esac
}

follow() { # MS: follows the executor for so long
  local end left line
  end=$(($(now_ms) + $1))
  while left=$((end - $(now_ms))) && ((left > 0)); do
    if read -r -t "$((left / 1000)).$(printf %03d $((left % 1000)))" -u "$orders" line; then
      executed "$line"
    fi
  done
}

follow_to() { # MS SINCE THE EPOCH
  local left=$(($1 - $(now_ms)))
  if ((left > 0)); then follow "$left"; fi
}

until_so() { # SECONDS WHAT COMMAND...: follows the executor until the command succeeds
  local end=$(($(now_ms) + $1 * 1000)) what=$2
  shift 2
  until "$@"; do
    (($(now_ms) < end)) || die "$what: not within the time allowed"
    follow 50
  done
}

# ---- what is waited for and checked

serving() { [[ $(<"$work/reprieved.log") == *msg=serving* ]]; }
alive() { kill -0 "$1" 2>/dev/null; }
serving_or_dead() { serving || ! alive "$service"; }
synced() { [[ $("$bin/reprieve" get clusters -o json 2>>"$work/cli.log") == *'"SYNC_STATE_SYNCED"'* ]]; }
attached() { [[ $("$bin/reprieve" get clusters -o json 2>>"$work/cli.log") == *'"executor_id"'* ]]; }
waits() { [[ $(open "$1") == *'"EVICTION_STATE_WAITING"'* ]]; }
ordered() { [[ -n ${order_at[$1]:-} ]]; }
closed() { [[ $("$bin/reprieve" history --pod "$1" -o json 2>>"$work/cli.log") == *'"CLOSE_REASON_EVICTED"'* ]]; }

on_time() { # POD MS: its order came at its due instant or at most 1 s later
  local off=$((order_at[$1] - $2))
  ((off >= 0 && off <= 1000)) || die "the order for $1 came $off ms after its due instant; 0 to 1000 are right"
}

# ---- the processes

start_service() { # PORT
  : >"$work/reprieved.log"
  "$bin/reprieved" --data-dir "$work/data" --listen "127.0.0.1:$1" --admin-listen '' --adopt enforce 2>>"$work/reprieved.log" >&2 &
  service=$!
  until_so 15 "reprieved serves" serving_or_dead
  serving
}

# find_port starts the service on a port that is free. The ports are below those
# that the system gives to clients: one of the demo's own could sit on it else.
find_port() {
  local try
  for try in {0..19}; do
    port=$((20000 + ($$ + try * 97) % 12000))
    if start_service "$port"; then return; fi
    [[ $(<"$work/reprieved.log") == *"in use"* ]] || die "reprieved does not start"
  done
  die "no free port in 20 tries"
}

tell_logs() {
  local log
  for log in "$work"/*.log; do
    printf -- '--- the end of %s\n' "${log##*/}" >&2
    tail -n 8 "$log" >&2
  done
}

cleanup() {
  local code=$? pid end
  trap - EXIT
  if ((code != 0 && code < 128)); then tell_logs; fi
  for pid in $executor $feeder $service; do
    kill -CONT "$pid" 2>/dev/null || :
    kill -TERM "$pid" 2>/dev/null || :
  done
  end=$(($(now_ms) + 5000))
  for pid in $executor $feeder $service; do
    while alive "$pid" && (($(now_ms) < end)); do read -r -t 0.05 -u "$orders" _ || :; done
    kill -KILL "$pid" 2>/dev/null || :
    wait "$pid" 2>/dev/null || :
  done
  rm -rf "$work"
  exit "$code"
}

for program in reprieved reprieve; do
  if [[ ! -x $bin/$program ]]; then
    echo "demo: $bin/$program is not there; run 'make build' first" >&2
    exit 2
  fi
done
work=$(mktemp -d "${TMPDIR:-/tmp}/reprieve-demo.XXXXXX")
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mkfifo "$work/nodes" "$work/pods" "$work/orders"
: >"$work/cli.log"
# Opened for both directions, so that no end waits for the other.
exec {nodes}<>"$work/nodes" {pods}<>"$work/pods" {orders}<>"$work/orders"

# ---- the demo

find_port
export REPRIEVE_SERVER=127.0.0.1:$port
say "reprieved runs on $REPRIEVE_SERVER with its data in a new folder, and may evict (--adopt enforce)."

list nodes.jsonl "$nodes"
list pods.jsonl "$pods"
"$bin/reprieve" feed --cluster-uid 0a4d6c1e-demo-kube-system -f "$work/nodes" -f "$work/pods" --synced-after 300ms 2>"$work/feed.log" >&2 &
feeder=$!
"$bin/reprieve" execute --answer EVICTED -o json >"$work/orders" 2>"$work/execute.log" &
executor=$!
until_so 10 "the feed is synced" synced
until_so 10 "the executor is attached" attached
say "Two watch streams, as kubectl writes them, feed a sample cluster; an executor is attached."
show get clusters

say "node-a gets a NoExecute taint. cart-7c9f does not tolerate it and leaves at once; others wait."
taint node-a
until_so 5 "cart-7c9f is ordered" ordered cart-7c9f
on_time cart-7c9f "${order_due[cart-7c9f]}"
until_so 5 "the wait of checkout-6b4d is open" waits checkout-6b4d
before=$(field due_time "$(open checkout-6b4d)")
mail_before=$(field due_time "$(open mail-0)")
due=$(to_ms "$before")
tainted=$((due - 12000))
until_so 5 "cart-7c9f is closed" closed cart-7c9f
show get evictions

follow_to $((tainted + 2500))
say "The waits count down. log-agent tolerates the taint for ever, cart-8q2m is on node-b: both stay."
show get evictions

say "search-5d8b tolerates the taint for 4 s; then its order goes out."
until_so 8 "search-5d8b is ordered and closed" closed search-5d8b
on_time search-5d8b $((tainted + 4000))

follow_to $((tainted + 5500))
say "reprieved is killed (SIGKILL) $(($(now_ms) - tainted)) ms into the 12 s wait of checkout-6b4d."
note "due instant of checkout-6b4d before the kill: $before"
# The feeder sleeps meanwhile: what is shown next is from the disk alone.
kill -STOP "$feeder"
kill -KILL "$service"
wait "$service" 2>/dev/null || :
if [[ -n $(open checkout-6b4d) ]]; then die "the service still answers after SIGKILL"; fi
note "mail-0 falls due while nothing runs"
follow_to $(($(to_ms "$mail_before") + 200))

start_service "$port" || die "reprieved does not start again on the same data"
after=$(open checkout-6b4d) || die "checkout-6b4d cannot be asked for after the restart"
mail=$(open mail-0) || die "mail-0 cannot be asked for after the restart"
say "reprieved runs again on the same data; no feed is back yet, so nothing is sent (NOT_SYNCED)."
show get evictions
note "due instant of checkout-6b4d after the restart:  $(field due_time "$after")"
[[ $(field due_time "$after") == "$before" ]] || die "the due instant moved: it was $before"
[[ $(field due_time "$mail") == "$mail_before" ]] || die "the due instant of mail-0 moved: it was $mail_before"
[[ $(field hold "$mail") == HOLD_REASON_CLUSTER_NOT_SYNCED ]] || die "mail-0 is due and blind, but held by '$(field hold "$mail")'"
until_so 5 "the executor is attached again" attached
follow 300
if ordered mail-0; then die "mail-0 was ordered before the cluster was synced"; fi
if synced; then die "the cluster is synced without a feed"; fi

kill -CONT "$feeder"
say "The feed connects and lists again by itself; mail-0 is decided again, and its order goes out."
until_so 5 "the cluster is synced again" synced
until_so 3 "mail-0 is ordered and closed" closed mail-0

say "The wait of checkout-6b4d goes on from its start."
show get evictions
until_so $(((due - $(now_ms)) / 1000 + 4)) "checkout-6b4d is ordered and closed" closed checkout-6b4d
on_time checkout-6b4d "$due"
note "its order came $((order_at[checkout-6b4d] - due)) ms after the due instant that was set before the kill"

say "What happened, and why (LATE: mail-0 could not be sent while its cluster was not known):"
show history
[[ $("$bin/reprieve" get evictions -o json) != *'"id"'* ]] || die "evictions are still open"
((sent == 4 && ${#order_at[@]} == 4)) || die "$sent orders were sent, for ${!order_at[*]}; 4 pods, once each, are right"
for pod in log-agent-x2k cart-8q2m; do
  if closed "$pod"; then die "$pod was evicted and should have stayed"; fi
done
printf '\nAll of it was checked: 4 pods left, each once; 2 stayed; the kill moved no due instant.\n'
