// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/verify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/promise.h"
#include "tessera/launch/early_stop.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;

/// A loss scale of 2^40 needs that many steps to decrease; no scale starts higher.
constexpr std::int64_t kMostSkips = 64;
/// Fraction of the norm of all tensors; tensors with a smaller norm are measured as if they had
/// this norm.
constexpr double kFloor = 1e-3;
/// The difference of two layouts in differences that a spacing of every weight makes: the results
/// of both are rounded, forward and in the two products of a backward, and each of these errors is
/// at most half a spacing.
constexpr double kRoundings = 2 * 3 * 0.5;
constexpr const char* kLosses = "losses";
constexpr double kNoNumber = std::numeric_limits<double>::infinity();

fs::path gradient_of(const fs::path& folder) {
  return folder / "gradient";
}
fs::path training_of(const fs::path& folder) {
  return folder / "training";
}

/// Waits until no transfer of the rank is under way before it leaves.
void part(comm::World& world, Engine& engine) {
  engine.finish();
  world.barrier(TESSERA_HERE("end of a verified run"));
}

/// Called by all ranks; nothing is kept.
int stopped(comm::World& world, Engine& engine, const StepReport& report) {
  part(world, engine);
  return launch::unsaved_exit_code(report.stop_signal);
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values)
    sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

/// The tensors of one kind in a checkpoint, by the names of their parameters.
class Tensors {
 public:
  /// Selects names that begin with `prefix`; an empty prefix selects the parameters.
  Tensors(const fs::path& checkpoint, const std::string& prefix) : opened_(checkpoint) {
    for (const checkpoint::Checkpoint::Tensor& tensor : opened_.tensors()) {
      const bool state = tensor.name.starts_with("optimizer.");
      if (prefix.empty() ? state : !tensor.name.starts_with(prefix)) continue;
      by_name_[tensor.name.substr(prefix.size())] = &tensor;
    }
  }

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, tensor] : by_name_)
      out.push_back(name);
    return out;
  }
  [[nodiscard]] bool has(const std::string& name) const { return by_name_.contains(name); }
  [[nodiscard]] std::vector<float> values(const std::string& name) const {
    return opened_.values(*by_name_.at(name));
  }
  /// The norm of all tensors together.
  [[nodiscard]] double whole_norm() const {
    double sum = 0;
    for (const auto& [name, tensor] : by_name_) {
      const double one = norm(values(name));
      sum += one * one;
    }
    return std::sqrt(sum);
  }

 private:
  checkpoint::Checkpoint opened_;
  std::map<std::string, const checkpoint::Checkpoint::Tensor*> by_name_;
};

Deviation difference(const std::vector<float>& reference,
                     const std::vector<float>& other,
                     double floor) {
  const double relative = deviation_of(reference, other, floor);
  return {relative,
          std::memcmp(reference.data(), other.data(), reference.size() * sizeof(float)) == 0};
}

/// Iterates over the tensors of one kind that both traces have.
template <class Receive>
void compare_tensors(const fs::path& reference,
                     const fs::path& other,
                     const std::string& prefix,
                     const Receive& receive) {
  const Tensors in_reference(reference, prefix), in_other(other, prefix);
  TESSERA_REQUIRE(in_reference.names() == in_other.names(),
                  Format,
                  fmt::format("the two layouts did not save the same tensors: {} and {}",
                              in_reference.names().size(),
                              in_other.names().size()),
                  "");
  const double floor = kFloor * in_reference.whole_norm();
  for (const std::string& name : in_reference.names())
    receive(name, difference(in_reference.values(name), in_other.values(name), floor));
}

double relative_loss(double reference, double other) {
  if (reference == other) return 0.0;
  const double out = std::abs(other - reference) / std::abs(reference);
  if (!std::isfinite(out)) return kNoNumber;
  return out;
}

}  // namespace

double deviation_of(const std::vector<float>& reference,
                    const std::vector<float>& other,
                    double floor) {
  TESSERA_REQUIRE(
      reference.size() == other.size(),
      Format,
      fmt::format(
          "a tensor of {} elements is compared with one of {}", other.size(), reference.size()),
      "");
  std::vector<float> between(reference.size());
  for (std::size_t i = 0; i < reference.size(); ++i)
    between[i] = other[i] - reference[i];
  const double apart = norm(between);
  if (apart == 0) return 0.0;
  const double relative = apart / std::max(norm(reference), floor);
  if (!std::isfinite(relative)) return kNoNumber;
  return relative;
}

int keep_first_gradient(comm::World& world,
                        const planner::PlanWithData& gradient_plan,
                        const std::shared_ptr<const data::Datasets>& data,
                        const fs::path& folder,
                        double nudge) {
  const std::unique_ptr<Engine> engine = initialize(gradient_plan, world, data);
  if (nudge != 0.0) engine->initialize_weights(nudge);
  // An fp16 gradient that overflows is unusable: the scale decreases, and the next samples follow.
  StepReport report;
  do {
    report = engine->train_step();
    if (report.stop_requested) return stopped(world, *engine, report);
  } while (report.skipped && engine->step() < kMostSkips);
  TESSERA_REQUIRE(
      !report.skipped,
      Numeric,
      fmt::format("none of the first {} gradients is finite: {}", kMostSkips, report.skip_reason),
      "use bf16, or a smaller fp16.initial_scale_power");
  fs::create_directories(gradient_of(folder));
  engine->save(gradient_of(folder));
  part(world, *engine);
  return kExitOk;
}

int train_traced(comm::World& world,
                 const planner::PlanWithData& plan,
                 const std::shared_ptr<const data::Datasets>& data,
                 std::int64_t steps,
                 const fs::path& folder,
                 double nudge) {
  const std::unique_ptr<Engine> engine = initialize(plan, world, data);
  if (nudge != 0.0) engine->initialize_weights(nudge);
  std::string losses;
  while (engine->step() < steps) {
    const StepReport report = engine->train_step();
    if (report.stop_requested) return stopped(world, *engine, report);
    losses += fmt::format("{:a}\n", report.loss);
  }
  fs::create_directories(training_of(folder));
  engine->save(training_of(folder));
  if (world.is_leader()) files::write_atomic(folder / kLosses, losses);
  part(world, *engine);
  return kExitOk;
}

LayoutTrace read_trace(const fs::path& folder) {
  LayoutTrace out;
  const std::string losses = files::read(folder / kLosses);
  for (const std::string& line : text::split(text::trim(losses), '\n'))
    out.losses.push_back(std::strtod(line.c_str(), nullptr));
  const auto gradient = checkpoint::newest(gradient_of(folder));
  const auto weights = checkpoint::newest(training_of(folder));
  TESSERA_REQUIRE(gradient && weights,
                  Format,
                  fmt::format("{} holds no checkpoint of the verified run", folder.string()),
                  "");
  out.gradient = *gradient;
  out.weights = *weights;
  return out;
}

LayoutTrace trace_layout(const planner::PlanWithData& plan,
                         const planner::PlanWithData& gradient_plan,
                         const std::shared_ptr<const data::Datasets>& data,
                         std::int64_t steps,
                         const fs::path& folder,
                         const Report& report,
                         double nudge) {
  LayoutTrace out;
  const auto gradient = [&](comm::World& world) {
    return keep_first_gradient(world, gradient_plan, data, folder, nudge);
  };
  const auto training = [&](comm::World& world) {
    return train_traced(world, plan, data, steps, folder, nudge);
  };
  const launch::Messages words;  // nothing of it can be resumed
  out.code = run_ranks(gradient_plan, report, gradient, words);
  if (out.code == kExitOk) out.code = run_ranks(plan, report, training, words);
  return out.code == kExitOk ? read_trace(folder) : out;
}

Deviations compare_traces(const LayoutTrace& reference, const LayoutTrace& other) {
  Deviations out;
  TESSERA_REQUIRE(
      reference.losses.size() == other.losses.size(),
      Format,
      fmt::format(
          "the two layouts trained {} and {} steps", reference.losses.size(), other.losses.size()),
      "");
  for (std::size_t s = 0; s < reference.losses.size(); ++s) {
    const double a = reference.losses[s], b = other.losses[s];
    out.losses.push_back(relative_loss(a, b));
    out.same_losses =
        out.same_losses && std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  }
  std::map<std::string, TensorDeviation> tensors;
  const auto at = [&](const std::string& name) -> TensorDeviation& {
    tensors[name].name = name;
    return tensors[name];
  };
  compare_tensors(
      reference.gradient,
      other.gradient,
      fmt::format("optimizer.{}.", kGradientState),
      [&](const std::string& name, const Deviation& found) { at(name).gradient = found; });
  compare_tensors(
      reference.weights, other.weights, "", [&](const std::string& name, const Deviation& found) {
        at(name).weights = found;
      });
  for (auto& [name, deviation] : tensors)
    out.tensors.push_back(std::move(deviation));
  return out;
}

RoundingBounds rounding_bounds(const Deviations& nudged, const engine::Promise& promise) {
  RoundingBounds out;
  for (const TensorDeviation& tensor : nudged.tensors) {
    out.gradients[tensor.name] = std::max(promise.gradient, kRoundings * tensor.gradient.relative);
  }
  // A loss is one number, which may agree by chance; the difference that it hides stays.
  double largest = 0.0;
  for (const double loss : nudged.losses) {
    largest = std::max(largest, loss);
    out.losses.push_back(std::max(promise.loss, kRoundings * largest));
  }
  return out;
}

}  // namespace tessera::engine
