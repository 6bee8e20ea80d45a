// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/speed_meter.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/ops/peak.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"

namespace tessera::engine {
namespace {

constexpr std::int64_t kIgnored = 2;    // steps until caches are full
constexpr std::int64_t kMeasured = 12;  // the step whose arithmetic is counted
constexpr std::int64_t kMeasuredOnDevice = 3;
constexpr double kWorthIt_s = 60;  // minimum remaining time

Device device_of(Engine& engine) {
  return engine.world().transport().device();
}

}  // namespace

std::string Speed::text(double step_s) const {
  if (step_s <= 0 || peak <= 0) return "";
  const double rate = flops / step_s;
  const std::string light =
      least_s > 0 ? fmt::format(", {:.0f}% of the speed of light", 100 * least_s / step_s) : "";
  return fmt::format("{:.3g} TFLOP/s (MFU {:.0f}%{})", rate / 1e12, 100 * rate / peak, light);
}

std::int64_t SpeedMeter::measured_step(Engine& engine) {
  return device_of(engine).kind == DeviceKind::Cpu ? kMeasured : kMeasuredOnDevice;
}

/// The result is the same on every rank.
bool SpeedMeter::is_worth_it(Engine& engine) {
  if (device_of(engine).kind != DeviceKind::Cpu) return true;
  comm::World& world = engine.world();
  const double left = static_cast<double>(engine.max_steps() - engine.step());
  const double mean = seconds_ / static_cast<double>(kMeasured - 1 - kIgnored);
  const std::vector<double> expected =
      world.all_gather(world.everyone(), {mean * left}, TESSERA_HERE("expected time"));
  return *std::max_element(expected.begin(), expected.end()) >= kWorthIt_s;
}

void SpeedMeter::before_step(Engine& engine) {
  if (steps_ + 1 != measured_step(engine)) return;
  engine.pause_clock();
  measures_ = is_worth_it(engine);
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
  const double peak = ops::peak_flops(planner::working_of(engine.plan()), device);
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
