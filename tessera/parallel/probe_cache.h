// SPDX-License-Identifier: Apache-2.0
// Runs the blocks of a model in a layout on meta tensors (activation_probe.h), and keeps what they
// need for the sizes queried so far.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/activation_probe.h"
#include "tessera/parallel/parameter_rules.h"

namespace tessera::parallel {

struct Layout;

/// A model in a layout, and the tensors of its samples, which must be known. All must outlive this.
struct Probing {
  const nn::Model& model;
  const Layout& layout;
  const ParameterRules& rules;
  std::span<const data::TensorSpec> sample;
};

/// The memory needs of the blocks of one model. Can be used from any thread.
class ProbeCache {
 public:
  /// Throws the probe's error, at every call.
  const std::vector<BlockBytes>& training(const Probing& probing, bool recompute, bool split);
  /// For batches of `samples`.
  std::int64_t evaluation(const Probing& probing, std::int64_t samples);

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<BlockBytes>> training_;
  std::map<std::string, std::int64_t> evaluation_;
};

/// Bytes of a training step on a stage.
struct StepActivations {
  std::int64_t most = 0;       ///< the peak
  std::int64_t with_sums = 0;  ///< the peak together with the sums of gradients
  std::int64_t flow = 0;       ///< the largest flow between two blocks of the model
};
/// `sums`: GradientBytes::sums_of_blocks; empty: with_sums is `most`. Throws the errors of blocks
/// that do not run on meta tensors. Cost: a few milliseconds the first time, then arithmetic.
StepActivations step_activations(const Probing& probing,
                                 int stage,
                                 ProbeCache& cache,
                                 std::span<const std::int64_t> sums);
/// The tensors of a stage that rest on a disk between forward and backward. Errors: as above.
StoredActivations stored_activations(const Probing& probing, int stage, ProbeCache& cache);
/// The work of every block in one micro-batch of a training, on rank 0 of its stage. Throws the
/// error of a block that does not run on meta tensors.
std::vector<BlockWork> work_of_blocks(const Probing& probing);
/// The names of the terms that an evaluation of `samples` computes.
std::vector<std::string> terms_of(const Probing& probing, std::int64_t samples);

}  // namespace tessera::parallel
