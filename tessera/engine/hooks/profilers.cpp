// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/hooks/profilers.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/engine/trainer.h"
#include "tessera/models/family.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;

/// A thread can have only one log of operations: the profilers of a step share it.
std::unique_ptr<ops::OpLog> log_of_operations() {
  return ops::OpLog::current() == nullptr ? std::make_unique<ops::OpLog>() : nullptr;
}

/// A number that is equal on ranks with the same rows; a double represents it exactly.
double fingerprint(const std::vector<report::CommsRow>& rows) {
  std::string all;
  for (const report::CommsRow& row : rows)
    all += fmt::format("{} {} {};", row.op, row.bytes, row.ranks);
  return static_cast<double>(files::xxh3(std::as_bytes(std::span(all))) >> 12);
}

class VerboseCounter final : public report::CommsCounter {
 public:
  using CommsCounter::CommsCounter;
  void hear(const trace::Span& span) override {
    CommsCounter::hear(span);
    if (span.kind != trace::Kind::Collective || !counts(span.name)) return;
    log::info(fmt::format("comms: {} of {} over {} ranks in {:.3f} ms: {}",
                          span.name,
                          text::bytes(static_cast<std::uint64_t>(span.bytes)),
                          span.ranks,
                          1e3 * span.seconds(),
                          span.detail));
  }
};

}  // namespace

void TraceHook::before_train_iter(Trainer& trainer) {
  const std::int64_t step = trainer.engine().step() + 1;
  if (step < range_.first || step > range_.second) return;
  if (!operations_) operations_ = log_of_operations();
  if (!recorder_) {
    recorder_ = std::make_unique<report::TraceRecorder>(trainer.engine().world().rank());
  }
  begin_ = now_s();
}

void TraceHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  if (!recorder_) return;
  const std::string name = fmt::format("step {}", report.step);
  recorder_->hear({.kind = trace::Kind::Phase, .name = name, .begin = begin_, .end = now_s()});
  const bool last = report.step >= range_.second || report.stop_requested ||
                    report.step >= trainer.engine().max_steps();
  if (!last) return;
  Engine& engine = trainer.engine();
  engine.pause_clock();
  const auto recorder = std::move(recorder_);
  operations_.reset();
  write(trainer, recorder->events(fmt::format("steps {} to {}", range_.first, report.step)));
  engine.resume_clock();
}

/// Every rank writes its events, and the first one joins them when all have. A rank that cannot
/// write must not keep the others waiting.
void TraceHook::write(Trainer& trainer, const std::string& events) {
  comm::World& world = trainer.engine().world();
  const fs::path folder = trainer.run_dir() / "profile";
  const auto part_of = [&](int rank) { return folder / fmt::format(".rank_{:05d}", rank); };
  trainer.try_to_write([&] {
    std::error_code ignored;
    fs::create_directories(folder, ignored);
    files::write_atomic(part_of(world.rank()), events);
  });
  world.barrier(TESSERA_HERE("parts of a trace"));
  if (!world.is_leader()) return;
  const fs::path path =
      folder / fmt::format("steps-{}-{}.json", range_.first, trainer.engine().step());
  const bool written = trainer.try_to_write([&] {
    std::vector<std::string> all;
    for (int rank = 0; rank < world.size(); ++rank) {
      // A rank with a full disk has reported it.
      if (!fs::exists(part_of(rank))) continue;
      all.push_back(files::read(part_of(rank)));
      fs::remove(part_of(rank));
    }
    files::write_atomic(path, report::trace_file(all));
  });
  Console* const console = trainer.console();
  if (written && console != nullptr)
    console->line(fmt::format("trace of {} in {} (ui.perfetto.dev)", world.size(), path.string()));
}

void FlopsHook::before_train_iter(Trainer& trainer) {
  Engine& engine = trainer.engine();
  if (engine.step() + 1 != options_.profile_step || !engine.world().is_leader()) return;
  operations_ = log_of_operations();
  counter_ = std::make_unique<report::WorkCounter>();
}

void FlopsHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  if (!counter_) return;
  Engine& engine = trainer.engine();
  const auto counter = std::move(counter_);
  operations_.reset();
  std::vector<report::BlockWork> blocks = counter->blocks();
  parallel::ModelInstance& model = engine.model();
  for (int b = 0; b < model.num_blocks(); ++b) {
    const auto it = std::find_if(blocks.begin(), blocks.end(), [&](const report::BlockWork& one) {
      return one.name == model.name(b);
    });
    if (it == blocks.end()) continue;
    for (const auto& param : model.params(b))
      it->parameters += param->info().local_numel();
  }
  const planner::Plan& plan = engine.plan();
  const std::string text =
      report::flops_report({.step = report.step,
                            .ranks = plan.ranks(),
                            .data_ranks = planner::data_ranks_of(plan),
                            .micro_batch = planner::micro_batch_of(plan),
                            .batch = planner::global_batch_of(plan),
                            .sequence_length = planner::sequence_length_of(plan),
                            .parameters = planner::model_of(plan).num_parameters,
                            .seconds = report.seconds,
                            .update_s = report.optimizer_s},
                           blocks,
                           options_.module_depth,
                           options_.top_modules,
                           options_.detailed);
  const fs::path path = options_.output_file.empty() ? trainer.run_dir() / "flops_profile.txt"
                                                     : fs::path(options_.output_file);
  const bool written = trainer.try_to_write([&] { files::write_atomic(path, text); });
  Console* const console = trainer.console();
  if (written && console != nullptr)
    console->line(fmt::format("flops_profiler: {}", path.string()));
}

CommsHook::~CommsHook() = default;

void CommsHook::before_train(Trainer& /*trainer*/) {
  const std::vector<std::string> ops =
      options_.prof_all ? std::vector<std::string>() : options_.prof_ops;
  // Without named operations nothing is counted.
  if (!options_.prof_all && ops.empty()) return;
  if (options_.verbose) {
    counter_ = std::make_unique<VerboseCounter>(ops);
  } else {
    counter_ = std::make_unique<report::CommsCounter>(ops);
  }
}

void CommsHook::after_train(Trainer& trainer) {
  if (!counter_) return;
  const std::vector<report::CommsRow> rows = counter_->rows();
  counter_.reset();
  comm::World& world = trainer.engine().world();
  // Different stages of a pipeline have different collectives.
  const std::vector<double> prints =
      world.all_gather(world.everyone(), {fingerprint(rows)}, TESSERA_HERE("kinds of collectives"));
  const bool alike = std::all_of(
      prints.begin(), prints.end(), [&](double print) { return print == prints.front(); });
  std::vector<double> fastest;
  if (alike && !rows.empty()) {
    std::vector<double> waited;
    for (const report::CommsRow& row : rows)
      waited.push_back(row.waited);
    const std::vector<double> all =
        world.all_gather(world.everyone(), waited, TESSERA_HERE("times of collectives"));
    fastest = waited;
    for (std::size_t i = 0; i < all.size(); ++i)
      fastest[i % rows.size()] = std::min(fastest[i % rows.size()], all[i]);
  }
  const std::string table = report::comms_table(rows, fastest);
  log::info("collectives of this rank:\n" + table);
  if (!world.is_leader()) return;
  const fs::path path = trainer.run_dir() / "comms.txt";
  const bool written = trainer.try_to_write([&] { files::write_atomic(path, table); });
  Console* const console = trainer.console();
  if (written && console != nullptr) console->line(fmt::format("comms_logger: {}", path.string()));
}

void attach_profilers(Trainer& trainer) {
  if (trainer.run_dir().empty()) return;
  const config::Sections& sections = trainer.engine().plan().run().sections;
  if (const auto range = sections.get<report::ProfileOptions>().range())
    trainer.attach(std::make_unique<TraceHook>(*range));
  if (const auto& options = sections.get<report::FlopsProfilerOptions>(); options.enabled)
    trainer.attach(std::make_unique<FlopsHook>(options));
  if (const auto& options = sections.get<report::CommsLoggerOptions>(); options.enabled)
    trainer.attach(std::make_unique<CommsHook>(options));
}

}  // namespace tessera::engine
