#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: exhaustive multiprocess
# timeout: 7200
# Two hundred trainings with a fault each.   usage: faults_test.sh PROGRAM
exec "$(dirname "${BASH_SOURCE[0]}")/../../tools/faults.sh" "${1:?usage: faults_test.sh PROGRAM}" 200
