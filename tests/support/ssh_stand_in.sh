# SPDX-License-Identifier: Apache-2.0
# A stand-in for ssh without a network. Scripts source this file after claims.sh.
# shellcheck shell=bash

# stand_in_for_ssh FOLDER: puts an `ssh` into PATH that runs the command of a host on this machine. It appends its
# arguments to FOLDER/calls, and refuses the host NAME, as ssh does, while the file FOLDER/down-NAME exists. The file
# FOLDER/within-NAME holds words that run a command on the host NAME, such as `ip netns exec SPACE`.
stand_in_for_ssh() {
  # shellcheck disable=SC2016  # the stand-in expands
  shim "$1" ssh 'while [[ $1 == -* ]]; do case $1 in -o | -p) shift 2 ;; *) shift ;; esac; done
box=${0%/*}
[[ ! -e $box/down-$1 ]] || exit 255
# Hosts have temporary folders of their own: in a common one the daemons of Open MPI disturb each other.
export OMPI_MCA_orte_tmpdir_base=$box/tmp-$1
[[ -d $box/tmp-$1 ]] || mkdir -p "$box/tmp-$1"
within=
[[ ! -e $box/within-$1 ]] || within=$(<"$box/within-$1")
shift
exec $within sh -c "$*"'
  export PATH=$1:$PATH
}

# none_of_its_hosts FOLDER: no process is left that the stand-in in FOLDER has started. Agents, ranks and copy servers
# have no words that name their job, but the folder is in their PATH.
none_of_its_hosts() {
  local pid
  for pid in $(pgrep -f ' (agent|copy-server)$'); do
    ! grep -qsF "$1" "/proc/$pid/environ" || return 1
  done
}
