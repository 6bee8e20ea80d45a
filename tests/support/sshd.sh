# SPDX-License-Identifier: Apache-2.0
# A real sshd of this machine, on loopback, with keys of its own. Scripts source this file after claims.sh.
# shellcheck shell=bash

# find_sshd: prints the path of sshd, or fails if something that is needed is missing.
find_sshd() { PATH=$PATH:/usr/sbin command -v sshd && command -v ssh ssh-keygen >/dev/null; }

# start_sshd FOLDER HOST...: sshd listens, and `ssh -F FOLDER/config HOST` reaches it under each name. End it with
# stop_sshd FOLDER. FOLDER/authorized has the key that may log in.
start_sshd() {
  local folder=$1 port=$((20000 + RANDOM % 10000)) sshd
  sshd=$(find_sshd) || return 1
  shift
  ssh-keygen -q -t ed25519 -N '' -f "$folder/host" && ssh-keygen -q -t ed25519 -N '' -f "$folder/user" || return 1
  cp "$folder/user.pub" "$folder/authorized"
  cat >"$folder/sshd.conf" <<CONF
ListenAddress 127.0.0.1:$port
HostKey $folder/host
AuthorizedKeysFile $folder/authorized
PidFile $folder/sshd.pid
StrictModes no
UsePAM no
CONF
  cat >"$folder/config" <<CONF
Host $*
  HostName 127.0.0.1
  Port $port
  IdentityFile $folder/user
  IdentitiesOnly yes
  UserKnownHostsFile $folder/known
  StrictHostKeyChecking yes
CONF
  printf '[127.0.0.1]:%s %s\n' "$port" "$(cut -d' ' -f1,2 "$folder/host.pub")" >"$folder/known"
  [[ $EUID != 0 ]] || mkdir -p /run/sshd
  "$sshd" -f "$folder/sshd.conf" && until_true ssh -F "$folder/config" "$1" true 2>/dev/null
}
stop_sshd() { [[ ! -s $1/sshd.pid ]] || kill "$(cat "$1/sshd.pid")"; }
