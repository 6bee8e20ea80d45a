// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/run.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/node_parts.h"
#include "tessera/comm/flight.h"
#include "tessera/engine/agreement.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/experience.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/profile.h"
#include "tessera/engine/reference.h"
#include "tessera/engine/resume.h"
#include "tessera/engine/rewind.h"
#include "tessera/engine/run_folder.h"
#include "tessera/engine/trainer.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/hosts/host_check.h"
#include "tessera/hosts/host_part.h"
#include "tessera/interop/foreign_training.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/launch.h"
#include "tessera/models/family.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"
#include "tessera/report/stage_lines.h"

namespace tessera::engine {
namespace {

void say(const TrainCommand& command, std::string_view text) {
  if (command.console != nullptr && !command.quiet) command.console->line(text);
}

/// Checkpoints up to this size are read completely before any rank starts, which takes a second or
/// two. For larger ones only the headers are read first; every rank verifies the part that it
/// loads.
constexpr std::uint64_t kVerifiedFirst = std::uint64_t{2} << 30;

/// Returns the memory that all ranks of the plan may use if every host has as much as this one.
std::uint64_t memory_of_ranks(const planner::Plan& plan, comm::World& world) {
  const int of_host = std::min(plan.ranks(), std::max(1, plan.ranks() / world.host().count));
  return launch::available_memory() / static_cast<std::uint64_t>(of_host) *
         static_cast<std::uint64_t>(plan.ranks());
}

/// The checkpoint to load: on hosts with local disks the newest one that all hosts have.
std::optional<std::filesystem::path> checkpoint_of_all(Engine& engine,
                                                       const ResumePoint& resume,
                                                       const RunFolder& folder,
                                                       const TrainCommand& command) {
  const checkpoint::Ranks ranks = engine.saver().ranks();
  if (resume.copies || ranks.nodes == 1 || command.resume.kind != ResumeFrom::Kind::Newest)
    return resume.checkpoint;
  return checkpoint::newest_common(folder.checkpoints(), ranks);
}

/// Shows that this rank is alive while it waits for the reader of its output.
class Patience {
 public:
  Patience(Console* console, comm::World& world) : console_(console) {
    if (console_ != nullptr) console_->on_wait([&world] { world.keep_alive(); });
  }
  ~Patience() {
    if (console_ != nullptr) console_->on_wait({});
  }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  Console* console_;
};

/// Trains on one rank from the resume point to the end, or to a step that sends the run back: then
/// `back` is set.
int train_from(const planner::PlanWithData& plan,
               comm::World& world,
               const std::shared_ptr<const data::Datasets>& data,
               const RunFolder& folder,
               const ResumePoint& resume,
               const TrainCommand& command,
               ExtraRanks* extra_ranks,
               std::optional<Rewind>& back) {
  Engine engine(plan, world, data, extra_ranks);
  const auto from = checkpoint_of_all(engine, resume, folder, command);
  // A resumed run has other weights than the reference, which was stored.
  const std::filesystem::path kept = folder.path() / "reference.bin";
  const bool own = from ? folder.holds(*from) : resume.copies != nullptr;
  const bool has_reference = own && engine.read_reference(kept);
  if ((!from && !resume.copies) || (!has_reference && wants_reference(*data))) {
    engine.initialize_weights();
    engine.make_reference(kept);
  }
  if (resume.copies) {
    engine.load(*resume.copies);
  } else if (from) {
    // On hosts with local disks another one than was opened before the ranks started.
    engine.load(from == resume.checkpoint ? *resume.opened : interop::open_training(*from, plan));
  }
  engine.begin_experience(folder.path());
  Trainer trainer(engine, command.quiet ? nullptr : command.console, folder.path());
  attach_defaults(trainer, command.how.part.get());
  int code = kExitOk;
  try {
    code = trainer.fit();
  } catch (const Rewind& alarm) {
    back = alarm;
    engine.finish();
    world.barrier(TESSERA_HERE("before the run goes back"));
    return code;
  }
  if (world.is_leader()) {
    const std::string state = trainer.stop_signal() != 0 ? "stopped" : "finished";
    const std::string message =
        trainer.incomplete().empty() ? trainer.early_stop() : trainer.incomplete().front();
    // The engine may have loaded its best checkpoint.
    const std::int64_t step = trainer.last() ? trainer.last()->step : engine.step();
    trainer.try_to_write([&] { folder.write_status(state, step, code, message); });
    if (code == kExitIncomplete) log::error("trained to the end, but: " + message);
  }
  return code;
}

/// Trains on one rank of `world`; `extra_ranks`: ranks of the job that do not train.
int train_rank(const planner::PlacedPlan& plan,
               comm::World& world,
               const Opened& opened,
               const ResumePoint& resume,
               const TrainCommand& command,
               ExtraRanks* extra_ranks) {
  const std::shared_ptr<const data::Datasets>& data = opened.data;
  const RunFolder& folder = *opened.folder;
  const planner::PlanWithData mine =
      with_measured_stages(plan, plan.memory(), world, *data->train, memory_of_ranks(plan, world));
  for (const std::string& line :
       report::build_lines(mine.layout(), planner::model_of(mine).model, world.rank()))
    log::info(line);
  // The first table has room for only a few.
  if (world.rank() == 0) log_notes(mine);
  for (ResumePoint from = resume;;) {
    std::optional<Rewind> back;
    const int code = train_from(mine, world, data, folder, from, command, extra_ranks, back);
    if (!back) return code;
    if (extra_ranks != nullptr) extra_ranks->start_over();
    from.checkpoint = back->prepare(world, folder);
    from.opened = std::make_shared<const checkpoint::Checkpoint>(
        interop::open_training(*from.checkpoint, mine));
    from.copies.reset();
  }
}

/// Does the work of one rank of the job: it trains, or it does other work for those that do.
int run_rank(const planner::PlacedPlan& plan,
             comm::World& job,
             const Opened& opened,
             const ResumePoint& resume,
             const TrainCommand& command) {
  const Patience patience(command.console, job);
  const std::filesystem::path log = opened.folder->log_file(job.rank());
  log::open_file(log.string());
  comm::set_flight_folder(log.parent_path().string(),
                          command.how.part ? command.how.part->name : "");
  log::info(
      fmt::format("rank {} of {}, {} threads", job.rank(), job.size(), planner::threads_of(plan)));
  if (!opened.run_divided) return train_rank(plan, job, opened, resume, command, nullptr);
  return opened.run_divided(plan, job, [&](comm::World& world, ExtraRanks& extra_ranks) {
    return train_rank(plan, world, opened, resume, command, &extra_ranks);
  });
}

/// Writes a status; if the disk is full or read-only, warns and keeps the job's exit code.
void try_to_note(const std::function<void()>& note) {
  try {
    note();
  } catch (const std::exception& error) {
    log::warn(error.what());
  }
}

std::optional<int> finished_already(const ResumePoint& resume,
                                    const RunFolder& folder,
                                    const TrainCommand& command,
                                    bool owned) {
  const bool early = !resume.stopped_early.empty();
  if (!resume.checkpoint || (resume.position.step < resume.course.max_steps && !early))
    return std::nullopt;
  if (owned && folder.holds(*resume.checkpoint))
    try_to_note([&] { folder.note_finished(resume.position.step); });
  if (early) {
    say(command,
        fmt::format("{} is finished: {}. To go on raise eval.patience and eval.patience_steps, or "
                    "choose another run.dir",
                    folder.path().string(),
                    resume.stopped_early));
    return kExitOk;
  }
  say(command,
      fmt::format("{} is finished: step {} of {}. To go on raise trainer.max_steps (or "
                  "trainer.epochs), or choose another run.dir",
                  folder.path().string(),
                  resume.position.step,
                  resume.course.max_steps));
  return kExitOk;
}

/// Throws Error{Format} for a damaged checkpoint before the ranks start.
void check_resume_point(const ResumePoint& resume, bool all_of_it) {
  if (!resume.opened) return;
  resume.opened->check_files();
  if (all_of_it || resume.opened->bytes() <= kVerifiedFirst) resume.opened->verify();
}

/// Removes the flight recorders of an earlier failure, which `tessera doctor` would read.
void forget_flights(const std::filesystem::path& logs) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(logs, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("flight_rank_")) std::filesystem::remove(entry.path(), ignored);
  }
}

/// A hash of the data and the resume point, which the ranks of a host compare.
std::uint64_t asked_besides(const data::Datasets& data, const ResumePoint& resume) {
  const std::string text = fmt::format("{} tokens, {} samples, step {}, {} {} {}",
                                       data.train_tokens,
                                       data.train->size(),
                                       resume.position.step,
                                       data.fingerprint,
                                       data.validation_fingerprint,
                                       data.test_fingerprint);
  return files::xxh3(std::as_bytes(std::span(text)));
}

struct MovedAside {
  std::string what;
  std::filesystem::path where;
};
/// Moves aside files of another training, or of steps after the resume point, so that the
/// checkpoints and metrics.jsonl of the folder describe one training.
std::optional<MovedAside> make_room(ResumeFrom::Kind from,
                                    const RunFolder& folder,
                                    const ResumePoint& resume) {
  std::optional<std::filesystem::path> where;
  if (from == ResumeFrom::Kind::Newest) return std::nullopt;
  const bool anew = from == ResumeFrom::Kind::Never;
  if (!anew && folder.holds(*resume.checkpoint)) {
    where = folder.move_later_aside(resume.position.step);
    if (!where) return std::nullopt;
    return MovedAside{"the later checkpoints and a copy of metrics.jsonl were moved", *where};
  }
  if (anew) {
    where = folder.move_aside();
  } else if (folder.has_training()) {
    where = folder.move_aside(*resume.checkpoint);
  }
  if (!where) return std::nullopt;
  return MovedAside{"the old contents were moved", *where};
}

/// Ranks that were lost before resume from the newest checkpoint of the folder, if they
/// have written one.
ResumeFrom resume_again(const ResumeFrom& first, const RunFolder& folder) {
  const bool from_elsewhere =
      first.kind == ResumeFrom::Kind::Path && !checkpoint::newest(folder.checkpoints());
  return from_elsewhere ? first : ResumeFrom{};
}
/// Returns the run folder and, if the ranks write checkpoints, whether all hosts must have the same
/// one or each its own.
hosts::RunFolderCheck folder_check(const planner::RunPlan& run) {
  const auto& checkpoint = run.checkpoint;
  const bool saves = checkpoint.final || checkpoint.when().any() || checkpoint.interval_s() ||
                     checkpoint.keeps_best();
  const bool own = checkpoint.use_node_local_storage;
  return {.path = run.dir, .must_be_shared = saves && !own, .must_be_own = saves && own};
}

/// Trains once, until the ranks have ended. `again`: earlier ranks of this job were lost.
int train_once(const planner::PlacedPlan& prepared,
               Opened& opened,
               const TrainCommand& command,
               bool again) {
  const Local& local = opened.local;
  const RunFolder& folder = *opened.folder;
  const data::Datasets& data = *opened.data;
  TrainCommand mine = command;
  if (!local.is_leader) mine.console = nullptr;
  if (again) mine.resume = opened.copies ? ResumeFrom{} : resume_again(command.resume, folder);
  const ResumePoint resume = find_resume_point(mine.resume, folder, prepared, data, opened.copies);
  const planner::PlacedPlan plan = planner::with(prepared, resume.course);
  if (local.is_leader && again) {
    say(mine,
        fmt::format("going on after step {}{}",
                    resume.position.step,
                    resume.copies ? ", from the copies in memory" : ""));
  } else if (local.is_leader && command.on_ready) {
    command.on_ready(plan, opened, resume);
  }
  if (const auto code = finished_already(resume, folder, mine, local.is_leader && !command.dry_run))
    return *code;
  if (local.is_leader && mine.resume.kind == ResumeFrom::Kind::Never) folder.require_own_contents();
  if (command.dry_run) opened.early.reset();  // from here on it only reads, which may take long
  check_resume_point(resume, /*all_of_it=*/command.dry_run);
  if (command.dry_run && command.how.part != nullptr && command.how.part->hosts > 1)
    hosts::check_own_folder(folder_check(plan.run()));
  if (command.dry_run) return kExitOk;

  opened.early->check();
  if (local.is_leader) {
    if (const auto old = make_room(mine.resume.kind, folder, resume))
      say(mine, fmt::format("{} to {}", old->what, old->where.string()));
    if (!again) forget_flights(folder.log_file(0).parent_path());
    folder.prepare(plan.resolved());
    folder.write_status("running", resume.position.step, 0, "");
  }
  if (local.launched) opened.early.reset();  // a launcher's rank handles its signals itself
  const hosts::HostPart* const part = command.how.part.get();
  const Report report = [&](const std::vector<std::string>& lines, int exit_code) {
    const bool told_elsewhere =
        part != nullptr && part->is_agent && !lines.front().starts_with(launch::kStoppedAtOnce);
    log_failure({lines.begin() + (told_elsewhere ? 1 : 0), lines.end()}, exit_code);
    try_to_note([&] {
      folder.write_status(
          "failed", folder.last_metric_step(), exit_code, text::split(lines.front(), '\n').front());
    });
  };
  int code = kExitOk;
  try {
    const auto train = [&](comm::World& world) {
      return run_rank(plan, world, opened, resume, mine);
    };
    HowToStart how = command.how;
    how.asked = asked_besides(data, resume);
    how.facts = [&](const std::function<void()>& alive) {
      return facts_of(plan, data, resume, alive);
    };
    how.further_ranks = local.extra_ranks;
    how.folder = folder_check(plan.run());
    code = run_ranks(plan, report, train, training_messages(), how);
  } catch (const Error& error) {  // before ranks were started
    if (local.is_leader) {
      try_to_note([&] {
        folder.write_status("failed", resume.position.step, exit_code(error.kind()), error.what());
      });
    }
    throw;
  }
  if (local.is_leader) try_to_note([&] { folder.finish_status(code); });
  return code;
}

}  // namespace

void log_notes(const planner::Plan& plan) {
  for (const std::string& note : plan.notes())
    log::info("note: " + note);
}

int run_training(const planner::PlacedPlan& plan, Opened& opened, const TrainCommand& command) {
  TrainCommand mine = command;
  bool stop_asked = false;
  mine.how.stop_asked = &stop_asked;
  // Ranks on several hosts start again on all of them, which the process that started them does.
  const auto launcher = hosts::detect_launcher();
  const bool starts_all = command.how.part == nullptr && !launcher;
  const int asked = plan.run().options.most_restarts();
  if (launcher && launcher->rank == 0 && asked > 0)
    log::warn(fmt::format("run.restarts has no effect: only {} can start its ranks again",
                          launcher->name));
  const int restarts = starts_all ? asked : 0;
  bool again = command.how.part != nullptr && command.how.part->generation > 0;
  for (int used = 1;; ++used) {
    const int code = train_once(plan, opened, mine, again);
    if (code != exit_code(Error::Kind::Comm) || stop_asked || used > restarts) return code;
    log::warn(fmt::format(
        "the ranks start again (restart {} of {}, run.restarts) from the newest checkpoint",
        used,
        restarts));
    again = true;
  }
}

}  // namespace tessera::engine
