// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/batch_invariance.h"

namespace tessera::ops {
namespace {

thread_local int depth = 0;

}  // namespace

BatchInvariance::BatchInvariance() {
  ++depth;
}

BatchInvariance::~BatchInvariance() {
  --depth;
}

bool batch_invariant() {
  return depth > 0;
}

}  // namespace tessera::ops
