// SPDX-License-Identifier: Apache-2.0
// Runs the same training in two layouts and compares first gradient, losses and weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/promise.h"

namespace tessera::planner {
class PlanWithData;
}

namespace tessera::engine {

/// The results of the first steps in one layout.
struct LayoutTrace {
  int code = 0;                ///< exit code of the ranks; if it is not 0, the rest is empty
  std::vector<double> losses;  ///< of each step
  /// Checkpoints of the first gradient (keeping_gradient) and of the weights after the
  /// last step.
  std::filesystem::path gradient, weights;
};

/// Runs the first step of `gradient_plan`, which keeps the gradient, and then `steps` steps of
/// `plan` from its initial weights, each on its own ranks, which write their results under
/// `folder`. `report` receives the reason if a rank fails. `nudge`: the fraction of itself by which
/// each initial weight is moved. The caller must not have run an ATen operation.
LayoutTrace trace_layout(const planner::PlanWithData& plan,
                         const planner::PlanWithData& gradient_plan,
                         const std::shared_ptr<const data::Datasets>& data,
                         std::int64_t steps,
                         const std::filesystem::path& folder,
                         const Report& report,
                         double nudge = 0.0);

/// The function that one rank runs in each of the two runs; all ranks call it. Returns the exit
/// code: 0, or the code of a signal.
int keep_first_gradient(comm::World& world,
                        const planner::PlanWithData& gradient_plan,
                        const std::shared_ptr<const data::Datasets>& data,
                        const std::filesystem::path& folder,
                        double nudge = 0.0);
int train_traced(comm::World& world,
                 const planner::PlanWithData& plan,
                 const std::shared_ptr<const data::Datasets>& data,
                 std::int64_t steps,
                 const std::filesystem::path& folder,
                 double nudge = 0.0);
/// Reads the results that these wrote under `folder`.
LayoutTrace read_trace(const std::filesystem::path& folder);

/// ||other - reference|| / max(||reference||, floor); infinite if a value is NaN.
double deviation_of(const std::vector<float>& reference,
                    const std::vector<float>& other,
                    double floor);

/// deviation_of() with one thousandth of the norm of all tensors as the floor, because a gradient
/// that is zero in theory, such as that of a key's bias, is noise.
struct Deviation {
  double relative = 0.0;
  bool same_bits = true;
};
struct TensorDeviation {
  std::string name;
  Deviation gradient, weights;
};
struct Deviations {
  std::vector<double> losses;  ///< |other - reference| / |reference| of each step
  bool same_losses = true;     ///< bit by bit
  /// One entry per trained or frozen parameter, sorted by name (bytes).
  std::vector<TensorDeviation> tensors;
};
/// Throws Error{Format} if the two do not contain the same tensors.
Deviations compare_traces(const LayoutTrace& reference, const LayoutTrace& other);

/// The largest deviations that rounding explains.
struct RoundingBounds {
  std::map<std::string, double> gradients;  ///< by the names of the tensors
  std::vector<double> losses;               ///< of each step
};
/// The bounds of a layout that rounds elsewhere than one rank. `nudged`: the deviation of the same
/// training on one rank whose initial weights were moved by Promise::spacing, which passes through
/// every layer as rounding does and is amplified alike. It measures the condition of the model's
/// sums. The promise's own bounds are the least.
RoundingBounds rounding_bounds(const Deviations& nudged, const engine::Promise& promise);

}  // namespace tessera::engine
