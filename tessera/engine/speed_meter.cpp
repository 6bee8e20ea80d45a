// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/speed_meter.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/config/json.h"
#include "tessera/ops/peak.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/predict/described_machine.h"

namespace tessera::engine {
namespace {

constexpr std::int64_t kIgnored = 2;    // steps until caches are full
constexpr std::int64_t kMeasured = 12;  // the step whose arithmetic is counted
constexpr std::int64_t kKnown = 3;  // the same on a device, or where the machine's rates are known
constexpr double kWorthIt_s = 60;   // minimum remaining time

Device device_of(Engine& engine) {
  return engine.world().transport().device();
}

}  // namespace

std::string Speed::text(double step_s) const {
  if (step_s <= 0 || peak <= 0) return "";
  const std::string light =
      least_s > 0 ? fmt::format(", {:.0f}% of the speed of light", 100 * least_s / step_s) : "";
  return fmt::format(
      "{:.3g} TFLOP/s (MFU {:.0f}%{})", flops / step_s / 1e12, 100 * share(step_s), light);
}

double Speed::share(double step_s) const {
  return step_s <= 0 || peak <= 0 ? 0.0 : flops / step_s / peak;
}

double known_rate(const planner::Plan& plan) {
  std::error_code ignored;
  if (!std::filesystem::exists(predict::measured_file(), ignored)) return 0.0;
  try {
    const predict::DescribedMachine machine = predict::with_threads(
        predict::find_machine("here"), static_cast<int>(planner::threads_of(plan)));
    auto found = machine.peak.find(planner::working_of(plan));
    if (found == machine.peak.end()) found = machine.peak.find(DType::F32);
    return found == machine.peak.end() ? 0.0 : found->second;
  } catch (const Error& error) {
    log::warn(std::string("the rates of this machine cannot be read: ") + error.what());
    return 0.0;
  }
}

/// The result is the same on every rank.
bool SpeedMeter::is_worth_it(Engine& engine) {
  comm::World& world = engine.world();
  const double left = static_cast<double>(engine.max_steps() - engine.step());
  const double mean = seconds_ / static_cast<double>(kMeasured - 1 - kIgnored);
  const std::vector<double> expected =
      world.all_gather(world.everyone(), {mean * left}, TESSERA_HERE("expected time"));
  return *std::max_element(expected.begin(), expected.end()) >= kWorthIt_s;
}

void SpeedMeter::before_step(Engine& engine) {
  const bool known = steps_ + 1 == kKnown;
  if (!known && (steps_ + 1 != kMeasured || speed_)) return;
  engine.pause_clock();
  if (known && device_of(engine).kind != DeviceKind::Cpu) {
    measures_ = true;
  } else if (known) {
    comm::World& world = engine.world();
    known_ = world.all_gather(
        world.everyone(), {known_rate(engine.plan())}, TESSERA_HERE("rates of the machines"));
    if (std::ranges::find(known_, 0.0) != known_.end()) known_.clear();
    if (known_.empty() && world.is_leader())
      log::info(
          "the share of this machine's rate of products is shown only by trainings of more than a "
          "minute: tessera bench machine measures that rate for all of them");
    measures_ = !known_.empty();
  } else {
    measures_ = is_worth_it(engine);
  }
  // If a profiler of this step has a log already, nothing is measured, on any rank.
  if (measures_ && ops::OpLog::current() == nullptr) log_ = std::make_unique<ops::OpLog>();
  engine.resume_clock();
}

void SpeedMeter::after_step(Engine& engine,
                            const StepReport& report,
                            const std::filesystem::path& run_dir) {
  if (++steps_ > kIgnored && steps_ < kMeasured) seconds_ += report.seconds;
  if (!measures_) return;
  measures_ = false;
  const bool logged = log_ != nullptr;
  const std::vector<ops::OpRow> rows = logged ? log_->rows() : std::vector<ops::OpRow>();
  log_.reset();
  engine.pause_clock();
  const Device device = device_of(engine);
  const double peak = known_.empty()
                          ? ops::peak_flops(planner::working_of(engine.plan()), device)
                          : known_[static_cast<std::size_t>(engine.world().everyone().index)];
  // On a CPU, what operations read is often in its caches, so that a bound by traffic says little.
  const double traffic = device.kind == DeviceKind::Cpu ? 0.0 : ops::peak_bytes(device);
  double flops = logged ? 0.0 : -1.0, least_s = 0.0;
  for (const ops::OpRow& row : rows) {
    flops += row.flops;
    if (traffic > 0.0) least_s += std::max(row.flops / peak, row.bytes / traffic);
  }
  comm::World& world = engine.world();
  const std::vector<double> all = world.all_gather(
      world.everyone(), {flops, peak, least_s}, TESSERA_HERE("arithmetic of a step"));
  engine.resume_clock();
  Speed sum;
  for (std::size_t i = 0; i + 2 < all.size(); i += 3) {
    if (all[i] < 0) return;
    sum.flops += all[i];
    sum.peak += all[i + 1];
    sum.least_s = std::max(sum.least_s, all[i + 2]);
  }
  speed_ = sum;
  if (run_dir.empty() || !world.is_leader()) return;
  const json::Value out =
      json::Value::object({{"flops_per_step", json::Value::number(sum.flops)},
                           {"peak_flops_per_s", json::Value::number(sum.peak)},
                           {"least_s_per_step", json::Value::number(sum.least_s)}});
  files::write_atomic(run_dir / "speed.json", out.dump() + "\n");
}

std::optional<Speed> read_speed(const std::filesystem::path& run_dir) {
  const std::filesystem::path path = run_dir / "speed.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    const json::Value read = json::parse_strict(files::read(path), path.string());
    const json::Value *const flops = read.find("flops_per_step"), *const peak =
                                                                      read.find("peak_flops_per_s");
    if (flops == nullptr || peak == nullptr) return std::nullopt;
    const json::Value* const least = read.find("least_s_per_step");
    return Speed{
        flops->as_double(), peak->as_double(), least == nullptr ? 0.0 : least->as_double()};
  } catch (const Error&) {
    return std::nullopt;  // the file is damaged: other numbers of the run do not depend on it
  }
}

}  // namespace tessera::engine
