// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/train_plan.h"

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/comm/registry.h"
#include "tessera/engine/expected_speed.h"
#include "tessera/engine/metrics.h"
#include "tessera/engine/run.h"
#include "tessera/launch/machine.h"
#include "tessera/memory/device.h"
#include "tessera/mesh/host_layout.h"
#include "tessera/planner/course.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"
#include "tessera/report/first_table.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/task.h"

namespace tessera::cli {
namespace {

report::TableFacts table_facts(const planner::PlacedPlan& plan,
                               const engine::Opened& opened,
                               const engine::ResumePoint& resume,
                               bool dry_run,
                               bool quiet) {
  const data::Datasets& data = *opened.data;
  const engine::RunFolder& folder = *opened.folder;
  report::TableFacts facts;
  facts.train_tokens = data.train_tokens;
  facts.validation_tokens = data.validation_tokens;
  facts.train_samples = data.train->size();
  facts.classes = tasks::class_counts_of(*data.train);
  facts.free_disk_bytes = files::free_bytes(folder.path());
  facts.available_memory_bytes = opened.available;
  facts.host = opened.local.several_hosts ? "several" : launch::machine().host;
  facts.run_dir = folder.path().string();
  facts.resume_step = resume.position.step;
  if (resume.checkpoint) facts.resume_from = resume.checkpoint->string();
  facts.changes = resume.changes;
  const engine::StepSpeed measured = engine::median_speed(folder.path() / "metrics.jsonl");
  facts.tokens_are_known =
      planner::task_of(plan) == nullptr || !planner::task_of(plan)->writes_answers();
  if (facts.tokens_are_known) facts.tokens_per_s = measured.tokens_per_s;
  facts.step_s = measured.seconds;
  facts.more_notes = dry_run ? "with -v" : fmt::format("in {}", folder.log_file(0).string());
  facts.memory = plan.memory();
  if (facts.tokens_are_known && facts.tokens_per_s <= 0 && !opened.local.several_hosts && !quiet) {
    facts.tokens_per_s = engine::expected_speed(plan);
    facts.speed_is_estimated = true;
  }
  return facts;
}

/// Returns notes about variables that choose GPUs, and have no effect on the CPU.
std::vector<std::string> answers_to_environment(const planner::Plan& plan) {
  std::vector<std::string> out;
  if (memory::device_kind(plan.run().options.device) != DeviceKind::Cpu) return out;
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr) continue;
    out.push_back(
        fmt::format("{}={} has no effect: ranks compute on the CPU, and -n sets their "
                    "number",
                    name,
                    value));
  }
  return out;
}

/// Logs what may be meant otherwise.
void warn(const planner::PlacedPlan& plan,
          const engine::Opened& opened,
          const report::TableFacts& facts) {
  for (const std::string& warning :
       planner::warnings_of(plan.recipe(), plan.course(), opened.local.ranks))
    log::warn(warning);
  if (const std::string warning = report::warning_of_passes(plan, facts); !warning.empty())
    log::warn(warning);
  for (const std::string& answer : answers_to_environment(plan))
    log::warn(answer);
}

/// Reports which axes cross between hosts, and warns of those that should not.
void tell_of_hosts(const planner::Plan& plan, int ranks_per_host, engine::Console* console) {
  const mesh::HostLayoutNotes notes = mesh::host_layout_notes(plan.mesh(), ranks_per_host);
  if (!notes.text.empty() && console != nullptr) {
    console->line(fmt::format("hosts       {}; data travels over {}",
                              notes.text,
                              comm::link_name(plan.run().options.transport)));
  }
  for (const std::string& warning : notes.warnings)
    log::warn(warning);
}

}  // namespace

int train_plan(const planner::Plan& plan, engine::TrainCommand command) {
  engine::Console* const console = command.quiet ? nullptr : command.console;
  command.on_ready = [console, quiet = command.quiet, dry_run = command.dry_run](
                         const planner::PlacedPlan& placed,
                         const engine::Opened& opened,
                         const engine::ResumePoint& resume) {
    const report::TableFacts facts = table_facts(placed, opened, resume, dry_run, quiet);
    if (console != nullptr) {
      for (const std::string& line : report::first_table(placed, facts))
        console->line(line);
    }
    if (dry_run) engine::log_notes(placed);
    warn(placed, opened, facts);
    tell_of_hosts(placed, opened.local.ranks, console);
  };
  engine::Prepared prepared = engine::prepare(plan, command);
  return engine::run_training(prepared.plan, prepared.opened, command);
}

}  // namespace tessera::cli
