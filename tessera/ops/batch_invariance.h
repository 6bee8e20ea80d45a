// SPDX-License-Identifier: Apache-2.0
// Batch-invariant kernels: the result for a row of a product, or for a query of attention, is the
// same to the bit whatever else is computed together with it. docs/decisions/0032 explains how.
#pragma once

namespace tessera::ops {

/// While an object exists, the operations of the constructing thread use batch-invariant kernels on
/// the CPU: the forward of linear() and attention() without dropout; all other operations compute
/// rows independently in any case. Their backward uses the usual kernels. Objects may be nested;
/// destroy each on its own thread. Cost: products of many rows are slower than those of a library.
class BatchInvariance {
 public:
  BatchInvariance();
  ~BatchInvariance();
  BatchInvariance(const BatchInvariance&) = delete;
  BatchInvariance& operator=(const BatchInvariance&) = delete;
};
/// Returns true while such an object exists on this thread.
bool batch_invariant();

}  // namespace tessera::ops
