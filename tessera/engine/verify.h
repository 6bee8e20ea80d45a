// SPDX-License-Identifier: Apache-2.0
// The same training in two layouts, measured against each other: first gradient, losses, weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/engine/launch.h"
#include "tessera/planner/train_config.h"

namespace tessera::engine {

/// What one layout made of the first steps.
struct LayoutTrace {
  int code = 0;                ///< of the ranks; with another than 0 the rest is empty
  std::vector<double> losses;  ///< of each step
  /// Checkpoints: of the first gradient (planner::keeping_gradient), and after the last step.
  std::filesystem::path gradient, weights;
};

/// Trains `steps` steps of `plan` from its first weights, after the one of `gradient_plan` that
/// keeps the gradient; both on ranks of their own, which leave what they made under `folder`.
/// `report` is told why a rank failed. The caller must not have run an ATen operation.
LayoutTrace trace_layout(const planner::Plan& plan,
                         const planner::Plan& gradient_plan,
                         const std::shared_ptr<const data::Datasets>& data,
                         std::int64_t steps,
                         const std::filesystem::path& folder,
                         const Report& report);

/// The body of one rank of the two runs; all ranks call it. The exit code: 0, or as after a signal.
int keep_first_gradient(comm::World& world,
                        const planner::Plan& gradient_plan,
                        const std::shared_ptr<const data::Datasets>& data,
                        const std::filesystem::path& folder);
int train_traced(comm::World& world,
                 const planner::Plan& plan,
                 const std::shared_ptr<const data::Datasets>& data,
                 std::int64_t steps,
                 const std::filesystem::path& folder);
/// What these left under `folder`.
LayoutTrace read_trace(const std::filesystem::path& folder);

/// ||other - reference|| / max(||reference||, floor); infinite where a value is no number.
double deviation_of(const std::vector<float>& reference,
                    const std::vector<float>& other,
                    double floor);

/// deviation_of() with a thousandth of the norm of all tensors as the floor: what is zero in
/// theory, as the gradient of a key's bias, is noise.
struct Deviation {
  double relative = 0.0;
  bool same_bits = true;
};
struct TensorDeviation {
  std::string name;
  Deviation gradient, weights;
};
struct Deviations {
  std::vector<double> losses;            ///< |other - reference| / |reference|, of each step
  bool same_losses = true;               ///< to the bit
  std::vector<TensorDeviation> tensors;  ///< of each trained or frozen parameter, in byte order
};
/// Error{Format} if the two do not hold the same tensors.
Deviations compare_traces(const LayoutTrace& reference, const LayoutTrace& other);

}  // namespace tessera::engine
