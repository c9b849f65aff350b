#!/bin/bash
# Two hosts on one machine: network namespaces joined by a cable of a chosen rate, one rank of one core in each, Open MPI over TCP.
# It is one machine's cores and memory; only the network is that of two. Needs root, iproute2, openmpi-bin, util-linux.
#
#   bench/two_hosts.sh [--rate 1gbit] [--tool build/release/qkv] COMMAND...    qkv COMMAND as two ranks; prints bytes per direction
#   bench/two_hosts.sh --cut-after 5 train --parallel data --steps 1000000    takes the cable out after 5 s: how do the ranks end?
set -euo pipefail
rate=1gbit tool=build/release/qkv cut=''
while [ $# -gt 0 ]; do
  case $1 in
    --rate) rate=$2 && shift 2 ;;
    --tool) tool=$2 && shift 2 ;;
    --cut-after) cut=$2 && shift 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "two_hosts.sh: needs root, for network namespaces" >&2; exit 2; }
for program in ip tc mpirun unshare taskset; do
  command -v "$program" >/dev/null || { echo "two_hosts.sh: $program is missing (Debian: iproute2, openmpi-bin, util-linux)" >&2; exit 2; }
done
tool=$(realpath "$tool")

# Names of this run's own, removed at its end.
left=qkva$$ right=qkvb$$
work=$(mktemp -d)
clean_up() {
  # A daemon of mpirun that lost its mpirun may wait for ever; nothing else runs in these namespaces.
  for name in "$left" "$right"; do
    ip netns pids "$name" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
  done
  ip netns delete "$left" 2>/dev/null || true
  ip netns delete "$right" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
ip netns add "$left"
ip netns add "$right"
ip link add "$left" netns "$left" type veth peer name "$right" netns "$right"
number=1
for name in "$left" "$right"; do
  ip -n "$name" address add "10.77.0.$number/24" dev "$name"
  ip -n "$name" link set lo up
  ip -n "$name" link set "$name" up
  tc -n "$name" qdisc add dev "$name" root tbf rate "$rate" burst 256kb latency 50ms
  number=$((number + 1))
done

# What mpirun calls in place of ssh: AGENT HOST COMMAND... Each host has a name of its own.
cat >"$work/agent" <<EOF
#!/bin/sh
shift
exec ip netns exec $right unshare --uts sh -c "hostname $right; \$*"
EOF
# One core for each rank: mpirun would give both hosts' ranks the first one.
cat >"$work/rank" <<EOF
#!/bin/sh
echo \$\$ > "$work/pid\$OMPI_COMM_WORLD_RANK"
[ -z "$cut" ] || exec 2> "$work/said\$OMPI_COMM_WORLD_RANK"
exec taskset -c \$((OMPI_COMM_WORLD_RANK % $(nproc))) "$tool" "\$@"
EOF
chmod +x "$work/agent" "$work/rank"

counter() { ip netns exec "$1" cat "/sys/class/net/$1/statistics/tx_bytes"; }
before_left=$(counter "$left") before_right=$(counter "$right")

# Takes the cable out and says when each rank has ended, and its last words. mpirun itself waits for its other half for ever.
watch_the_cut() {
  sleep "$cut"
  ip -n "$left" link set "$left" down
  local since now rank
  since=$(date +%s.%N)
  for rank in 0 1; do
    while kill -0 "$(cat "$work/pid$rank")" 2>/dev/null; do sleep 0.1; done
    now=$(date +%s.%N)
    awk -v a="$since" -v b="$now" -v r="$rank" 'BEGIN { printf "two_hosts.sh: rank %d ended within %.1f s: ", r, b - a }'
    cat "$work/said$rank"
  done
  ip netns pids "$left" | xargs -r kill -9
}
[ -z "$cut" ] || watch_the_cut >&2 &
start=$(date +%s.%N)
code=0
ip netns exec "$left" unshare --uts sh -c "hostname $left; exec \"\$@\"" sh \
  mpirun --allow-run-as-root --bind-to none --mca plm_rsh_agent "$work/agent" --mca btl self,tcp --mca btl_tcp_if_include 10.77.0.0/24 \
  --mca oob_tcp_if_include 10.77.0.0/24 -n 2 --host 10.77.0.1:1,10.77.0.2:1 "$work/rank" "$@" || code=$?
end=$(date +%s.%N)
awk -v a="$start" -v b="$end" 'BEGIN { printf "two_hosts.sh: %.1f s", b - a }' >&2
[ -n "$cut" ] || echo ", sent $(($(counter "$left") - before_left)) and $(($(counter "$right") - before_right)) bytes over $rate" >&2
exit $code
