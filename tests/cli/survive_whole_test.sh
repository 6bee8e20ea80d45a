#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: hosts exhaustive multiprocess
# timeout: 600
# Further losses of survive_test.sh and peer_copies_test.sh.   usage: survive_whole_test.sh PROGRAM
folder=$(dirname "${BASH_SOURCE[0]}")
bad=0
for script in survive peer_copies; do bash "$folder/${script}_test.sh" "${1:?usage: survive_whole_test.sh PROGRAM}" whole || bad=1; done
exit "$bad"
