// SPDX-License-Identifier: Apache-2.0
// A libnccl.so.2 without functions: ranks of simulated GPUs exchange data through the host.
