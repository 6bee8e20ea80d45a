# SPDX-License-Identifier: Apache-2.0
# A stand-in for ssh without a network. Scripts source this file after claims.sh.
# shellcheck shell=bash

# stand_in_for_ssh FOLDER: puts an `ssh` into PATH that runs the command of a host on this machine. It appends its
# arguments to FOLDER/calls, and refuses the host NAME, as ssh does, while the file FOLDER/down-NAME exists.
stand_in_for_ssh() {
  # shellcheck disable=SC2016  # the stand-in expands
  shim "$1" ssh 'while [[ $1 == -* ]]; do case $1 in -o | -p) shift 2 ;; *) shift ;; esac; done
[[ ! -e $(dirname "$0")/down-$1 ]] || exit 255
# Hosts have temporary folders of their own: in a common one the daemons of Open MPI disturb each other.
export OMPI_MCA_orte_tmpdir_base=$(dirname "$0")/tmp-$1
mkdir -p "$OMPI_MCA_orte_tmpdir_base"
shift
exec sh -c "$*"'
  export PATH=$1:$PATH
}
