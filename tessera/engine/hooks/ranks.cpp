// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/hooks/ranks.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/engine/trainer.h"
#include "tessera/memory/ledger.h"
#include "tessera/models/family.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"
#include "tessera/report/stage_lines.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;

/// The measurements of one rank that are gathered on the leader.
enum Column : std::size_t {
  kHost,
  kStepMs,
  kCollectives,  ///< share of the time
  kWaits,        ///< share of the time, for other stages
  kResident,     ///< bytes
  kPeak,         ///< bytes that the ledger counted
  kKinds         ///< first of memory::kNumTags peaks
};
constexpr std::size_t kColumns = kKinds + static_cast<std::size_t>(memory::kNumTags);

/// The resident size of this process, which ranks that are threads share; 0: unknown.
double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double size = 0, resident = 0;
  file >> size >> resident;
  return file ? resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) : 0.0;
}

/// Replaces a file that readers may have open. Nothing waits for the disk: the next table replaces
/// a lost one.
void replace(const fs::path& path, const std::string& content) {
  const fs::path draft = path.string() + ".new";
  const int fd = files::create_own(draft);
  const ssize_t written = ::write(fd, content.data(), content.size());
  ::close(fd);
  const bool whole = written == static_cast<ssize_t>(content.size());
  std::error_code failure;
  if (whole) fs::rename(draft, path, failure);
  TESSERA_REQUIRE(whole && !failure,
                  Io,
                  fmt::format("cannot write {}", path.string()),
                  "free disk space, or choose a writable run.dir");
}

json::Value planned_memory(const planner::Plan& plan) {
  const planner::MemoryEstimate need = planner::estimate_memory(plan);
  json::Value out = json::Value::object();
  const auto put = [&](memory::Tag tag, std::int64_t bytes) {
    out[std::string(memory::name(tag))] = json::Value::integer(bytes);
  };
  put(memory::Tag::Parameters, need.parameters);
  put(memory::Tag::Gradients, need.gradients);
  put(memory::Tag::Optimizer, need.optimizer);
  if (need.unknown.empty()) put(memory::Tag::Activations, need.activations);
  put(memory::Tag::Communication, need.messages);
  put(memory::Tag::Other, need.other);
  return out;
}

/// Stages with their blocks and the mean waits of their ranks.
json::Value stages_of(const planner::Plan& plan, const std::vector<double>& all) {
  const int stages = planner::stages_of(plan);
  const mesh::Mesh mesh = plan.mesh();
  std::vector<double> waits(static_cast<std::size_t>(stages));
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    waits[static_cast<std::size_t>(mesh.coordinate(rank, mesh::Axis::Pp))] +=
        all[static_cast<std::size_t>(rank) * kColumns + kWaits] * stages / plan.ranks();
  }
  const std::vector<std::string> lines =
      report::stage_lines(plan.layout(), planner::model_of(plan).model);
  json::Value out = json::Value::array();
  for (std::size_t stage = 0; stage < waits.size(); ++stage) {
    json::Value one = json::Value::object();
    one["stage"] = json::Value::string(lines[stage]);
    one["waits"] = json::Value::number(waits[stage]);
    out.push_back(std::move(one));
  }
  return out;
}

json::Value rank_values(const mesh::Mesh& mesh, int rank, const double* numbers) {
  json::Value out = json::Value::object();
  out["rank"] = json::Value::integer(rank);
  out["host"] = json::Value::integer(static_cast<std::int64_t>(numbers[kHost]));
  out["pp"] = json::Value::integer(mesh.coordinate(rank, mesh::Axis::Pp));
  out["dp"] = json::Value::integer(mesh.index(rank, mesh::AxisSet::dp()));
  out["cp"] = json::Value::integer(mesh.coordinate(rank, mesh::Axis::Cp));
  out["tp"] = json::Value::integer(mesh.index(rank, mesh::AxisSet::tp()));
  out["step_ms"] = json::Value::number(numbers[kStepMs]);
  out["collectives"] = json::Value::number(numbers[kCollectives]);
  out["waits"] = json::Value::number(numbers[kWaits]);
  out["resident_bytes"] = json::Value::integer(static_cast<std::int64_t>(numbers[kResident]));
  out["peak_bytes"] = json::Value::integer(static_cast<std::int64_t>(numbers[kPeak]));
  json::Value& kinds = out["memory"] = json::Value::object();
  for (int t = 0; t < memory::kNumTags; ++t) {
    kinds[std::string(memory::name(static_cast<memory::Tag>(t)))] = json::Value::integer(
        static_cast<std::int64_t>(numbers[kKinds + static_cast<std::size_t>(t)]));
  }
  return out;
}

json::Value table(const planner::Plan& plan, std::int64_t step, const std::vector<double>& all) {
  const mesh::Mesh mesh = plan.mesh();
  json::Value out = json::Value::object();
  out["step"] = json::Value::integer(step);
  out["mesh"] = json::Value::string(mesh.text());
  if (planner::stages_of(plan) > 1) {
    out["schedule"] = json::Value::string(planner::schedule_of(plan));
    out["planned_waits"] = json::Value::number(report::planned_waits(plan.layout()));
    out["stages"] = stages_of(plan, all);
  }
  out["planned"] = planned_memory(plan);
  json::Value& ranks = out["ranks"] = json::Value::array();
  for (int rank = 0; rank < plan.ranks(); ++rank)
    ranks.push_back(rank_values(mesh, rank, &all[static_cast<std::size_t>(rank) * kColumns]));
  return out;
}

}  // namespace

void RanksHook::before_train(Trainer& /*trainer*/) {
  steps_ = counted_ = 0;
  seconds_ = comm_s_ = receive_s_ = 0;
}

/// Returns the same table on every rank.
bool RanksHook::due(Trainer& trainer, const StepReport& report) const {
  constexpr std::int64_t kFirst = 2, kEvery = 10;
  const std::int64_t every =
      std::max(kEvery, trainer.engine().plan().run().printing.steps_per_print);
  return steps_ <= kFirst || steps_ % every == 0 || report.stop_requested ||
         report.step >= trainer.engine().max_steps();
}

void RanksHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  ++steps_;
  ++counted_;
  seconds_ += report.seconds;
  comm_s_ += report.comm_s;
  receive_s_ += report.receive_s;
  if (!due(trainer, report)) return;
  Engine& engine = trainer.engine();
  comm::World& world = engine.world();
  engine.pause_clock();
  const double whole = std::max(seconds_, 1e-9);
  std::vector<double> mine(kColumns);
  mine[kHost] = world.host().index;
  mine[kStepMs] = 1e3 * seconds_ / static_cast<double>(counted_);
  mine[kCollectives] = comm_s_ / whole;
  mine[kWaits] = receive_s_ / whole;
  mine[kResident] = resident_bytes();
  const memory::Usage usage = engine.memory();
  mine[kPeak] = static_cast<double>(usage.total_peak);
  for (std::size_t t = 0; t < usage.peak.size(); ++t)
    mine[kKinds + t] = static_cast<double>(usage.peak[t]);
  counted_ = 0;
  seconds_ = comm_s_ = receive_s_ = 0;
  const std::vector<double> all =
      world.all_gather(world.everyone(), mine, TESSERA_HERE("table of ranks"));
  constexpr double kBetween_s = 1.0;
  const bool last = report.stop_requested || report.step >= engine.max_steps();
  const bool writes =
      world.is_leader() && !stopped_ && (last || steps_ == 1 || now_s() - written_ > kBetween_s);
  if (writes) {
    stopped_ = !trainer.try_to_write([&] {
      replace(trainer.run_dir() / "ranks.json",
              table(engine.plan(), report.step, all).dump() + '\n');
    });
    written_ = now_s();
  }
  engine.resume_clock();
}

}  // namespace tessera::engine
