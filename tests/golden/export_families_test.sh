#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# Every golden model gives the recorded logits after conversion, each in one of three ways; export_families_wide_test.sh has each in
# every way.   usage: export_families_test.sh PROGRAM TESSERA
source "$(dirname "${BASH_SOURCE[0]}")/export_families.sh"

claim "folders of safetensors" exported 0 3 ""
claim "folders with pytorch_model.bin" exported 1 3 "--to torch"
claim "by way of a checkpoint of tessera" exported 2 3 "--to tessera" "--shard-size 20kB"
claims_done
