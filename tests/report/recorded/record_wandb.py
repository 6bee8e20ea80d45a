#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records wandb.log, against which the writer of W&B's logs is compared byte for byte.

It was made with the class DataStore of the wheel wandb 0.16.6 (wandb/sdk/internal/datastore.py):
    pip install wandb==0.16.6 && python record_wandb.py wandb.log
Records: 5 bytes; 40,000, which go over two blocks; as many as leave 3 bytes of the block, which are
padding; 70,000, which go over three; none.
"""
import sys

import wandb
from wandb.sdk.internal.datastore import DataStore

wandb._set_internal_process()
store = DataStore()
store.open_for_write(sys.argv[1])
for record in (b"abcde", bytes(i * 7 % 251 for i in range(40000)), bytes(25493), bytes(range(250)) * 280, b""):
    store._write_data(record)
store.close()
