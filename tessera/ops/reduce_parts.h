// SPDX-License-Identifier: Apache-2.0
// The reduction of the parts that ranks sent to this one, in rank order.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/comm/transport.h"

namespace tessera::ops {

/// out[i] = parts[0, i] op parts[1, i] op ..., from the left; with `accumulate`, out[i] stands
/// before the first part. The bits are those of comm::reduce_arrays(): bf16 is reduced in fp32 and
/// rounded once, integers wrap around.
///
/// parts_PN [parts, elements] and out_N [elements] are contiguous, of one dtype that
/// comm::can_reduce() allows, and do not overlap; at least one part. It belongs to the
/// communication and has no OpScope.
void reduce_parts(const at::Tensor& parts_PN,
                  comm::Op op,
                  bool accumulate,
                  const at::Tensor& out_N);

}  // namespace tessera::ops
