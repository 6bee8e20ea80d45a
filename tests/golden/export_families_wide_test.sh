#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: wide
# timeout: 300
# Every golden model gives the recorded logits after conversion in each way.   usage: export_families_wide_test.sh PROGRAM TESSERA
source "$(dirname "${BASH_SOURCE[0]}")/export_families.sh"

claim "folders of safetensors" exported 0 1 ""
claim "folders with pytorch_model.bin" exported 0 1 "--to torch"
claim "by way of a checkpoint of tessera" exported 0 1 "--to tessera" "--shard-size 20kB"
claims_done
