# SPDX-License-Identifier: Apache-2.0
# A real sshd of this machine with keys of its own, on loopback or one in each network namespace. Scripts source this file after
# claims.sh.
# shellcheck shell=bash

# find_sshd: prints the path of sshd, or fails if something that is needed is missing.
find_sshd() { PATH=$PATH:/usr/sbin command -v sshd && command -v ssh ssh-keygen >/dev/null; }

# start_sshd FOLDER HOST...: sshd listens, and `ssh -F FOLDER/config HOST` reaches it under each name. End it with
# stop_sshd FOLDER. FOLDER/authorized has the key that may log in.
start_sshd() {
  local folder=$1
  shift
  make_keys "$folder" && listen "$folder" sshd 127.0.0.1 "" "$@" && until_true ssh -F "$folder/config" "$1" true 2>/dev/null
}
# start_sshd_in_namespaces FOLDER NET HOST_A HOST_B: the same with an sshd of its own in each of the namespaces of
# two_namespaces (namespaces.sh), which ssh reaches from $a.
start_sshd_in_namespaces() {
  local folder=$1 host
  make_keys "$folder" && listen "$folder" sshd_a "$2.1" "$a" "$3" && listen "$folder" sshd_b "$2.2" "$b" "$4" || return 1
  for host in "$3" "$4"; do until_true ip netns exec "$a" ssh -F "$folder/config" "$host" true 2>/dev/null || return 1; done
}
make_keys() {
  ssh-keygen -q -t ed25519 -N '' -f "$1/host" && ssh-keygen -q -t ed25519 -N '' -f "$1/user" && cp "$1/user.pub" "$1/authorized"
}
# listen FOLDER NAME ADDRESS NAMESPACE HOST...: starts FOLDER/NAME.conf's sshd, in the namespace if there is one.
listen() {
  local folder=$1 name=$2 address=$3 namespace=$4 port=$((20000 + RANDOM % 10000)) sshd
  sshd=$(find_sshd) || return 1
  shift 4
  cat >"$folder/$name.conf" <<CONF
ListenAddress $address:$port
HostKey $folder/host
AuthorizedKeysFile $folder/authorized
PidFile $folder/$name.pid
StrictModes no
UsePAM no
CONF
  cat >>"$folder/config" <<CONF
Host $*
  HostName $address
  Port $port
  IdentityFile $folder/user
  IdentitiesOnly yes
  UserKnownHostsFile $folder/known
  StrictHostKeyChecking yes
CONF
  printf '[%s]:%s %s\n' "$address" "$port" "$(cut -d' ' -f1,2 "$folder/host.pub")" >>"$folder/known"
  [[ $EUID != 0 ]] || mkdir -p /run/sshd
  ${namespace:+ip netns exec "$namespace"} "$sshd" -f "$folder/$name.conf"
}
stop_sshd() {
  local file
  for file in "$1"/sshd*.pid; do
    [[ ! -s $file ]] || kill "$(cat "$file")"
  done
}
