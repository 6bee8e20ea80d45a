// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/run.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/inputs.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/node_parts.h"
#include "tessera/checkpoint/peer_copies.h"
#include "tessera/comm/flight.h"
#include "tessera/comm/registry.h"
#include "tessera/engine/agreement.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/evaluated_metrics.h"
#include "tessera/engine/expected_speed.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/metrics.h"
#include "tessera/engine/profile.h"
#include "tessera/engine/reference.h"
#include "tessera/engine/resume.h"
#include "tessera/engine/rl/generators.h"
#include "tessera/engine/rl/plan.h"
#include "tessera/engine/rl/roll_back.h"
#include "tessera/engine/run_folder.h"
#include "tessera/engine/trainer.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/hosts/host_part.h"
#include "tessera/interop/foreign_training.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/machine.h"
#include "tessera/mesh/host_layout.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/stage_advice.h"
#include "tessera/planner/stages.h"
#include "tessera/report/first_table.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::engine {
namespace {

void say(const TrainCommand& command, std::string_view text) {
  if (command.console != nullptr && !command.quiet) command.console->line(text);
}

/// Checkpoints up to this size are read completely before any rank starts, which takes a second or
/// two. For larger ones only the headers are read first; every rank verifies the part that it
/// loads.
constexpr std::uint64_t kVerifiedFirst = std::uint64_t{2} << 30;

/// Shows the progress of tokenizing at most a few times a second.
data::TokenizeOptions tokenize_options(const planner::Plan& plan,
                                       const TrainCommand& command,
                                       const launch::EarlyStop& early) {
  data::TokenizeOptions how;
  how.poll = [&early] { early.check(); };
  how.text_field = plan.config.data.text_field;
  how.invalid_utf8 = plan.config.data.invalid_utf8;
  how.threads = launch::usable_cores();
  how.progress = [&command, last = 0.0](std::int64_t done, std::int64_t total) mutable {
    const double now = now_s();
    if (command.console == nullptr || command.quiet || (now - last < 0.25 && done < total)) return;
    last = now;
    command.console->live(
        done >= total
            ? std::string()
            : fmt::format("tokenizing {} of {} ({:.0f}%)",
                          text::bytes(static_cast<std::uint64_t>(done)),
                          text::bytes(static_cast<std::uint64_t>(total)),
                          100.0 * static_cast<double>(done) / static_cast<double>(total)));
  };
  return how;
}

/// Logs all notes; the first table has room for only a few.
void tell_notes(const planner::Plan& plan) {
  for (const std::string& note : plan.notes)
    log::info("note: " + note);
}

/// Returns the memory that all ranks of the plan may use, if every host has as much for each of
/// them as this one. `first_rank`, `local_ranks`: of this host, among them perhaps ranks that only
/// write rollouts.
std::uint64_t memory_of_hosts(const planner::Plan& plan, int first_rank, int local_ranks) {
  const int learners = std::clamp(plan.ranks - first_rank, 0, local_ranks),
            writers = local_ranks - learners;
  std::uint64_t available = launch::available_memory();
  if (writers > 0) available = rl::memory_beside_generators(plan, available, writers);
  // No limit for the ranks of other hosts.
  if (learners == 0) return std::numeric_limits<std::int64_t>::max();
  return available / static_cast<std::uint64_t>(learners) * static_cast<std::uint64_t>(plan.ranks);
}

/// The state in the memory of hosts with which the ranks of `part` begin; null: there is none.
std::shared_ptr<const checkpoint::Checkpoint> copies_of(const hosts::HostPart* part) {
  if (part == nullptr || !part->copies.from.exists()) return nullptr;
  return std::make_shared<const checkpoint::Checkpoint>(
      checkpoint::open_copies(part->copies, part->secret));
}

/// The checkpoint to load: on hosts with local disks the newest one that all hosts have.
std::optional<std::filesystem::path> checkpoint_of_all(Engine& engine,
                                                       const ResumePoint& resume,
                                                       const RunFolder& folder,
                                                       const TrainCommand& command) {
  const checkpoint::Ranks ranks = engine.ranks();
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

/// Trains on one rank from the resume point to the end, or to an alarm that sends the run back:
/// then `back` is set.
int train_from(const planner::Plan& plan,
               comm::World& world,
               const std::shared_ptr<const data::Datasets>& data,
               const RunFolder& folder,
               const ResumePoint& resume,
               const TrainCommand& command,
               rl::Generators* generators,
               std::optional<rl::RollBack>& back) {
  Engine engine(plan, world, data, generators);
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
    engine.load(interop::open_training(*from, plan));
  }
  engine.begin_experience(folder.path());
  Trainer trainer(engine, command.quiet ? nullptr : command.console, folder.path());
  attach_defaults(trainer, command.how.part.get());
  int code = kExitOk;
  try {
    code = trainer.fit();
  } catch (const rl::RollBack& alarm) {
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

/// Returns the number of the plan's ranks of a host.
int ranks_of_host(const planner::Plan& plan, comm::World& world) {
  return std::max(1, plan.ranks / world.host().count);
}

/// Trains on one rank of `world`; `generators`: ranks of the job that only write rollouts.
int train_rank(planner::Plan plan,
               comm::World& world,
               const std::shared_ptr<const data::Datasets>& data,
               const RunFolder& folder,
               const ResumePoint& resume,
               const TrainCommand& command,
               rl::Generators* generators) {
  place_measured_blocks(
      plan, world, *data->train, memory_of_hosts(plan, 0, ranks_of_host(plan, world)));
  for (const std::string& line : planner::build_lines(plan, world.rank()))
    log::info(line);
  if (world.rank() == 0) tell_notes(plan);
  for (ResumePoint from = resume;;) {
    std::optional<rl::RollBack> back;
    const int code = train_from(plan, world, data, folder, from, command, generators, back);
    if (!back) return code;
    if (generators != nullptr) generators->start_over();
    from.checkpoint = rl::go_back(world, folder, *back);
    from.copies.reset();
  }
}

/// Does the work of one rank of the job: it trains, or it writes rollouts for those that do.
int run_rank(const planner::Plan& plan,
             comm::World& job,
             const std::shared_ptr<const data::Datasets>& data,
             const RunFolder& folder,
             const ResumePoint& resume,
             const TrainCommand& command) {
  const Patience patience(command.console, job);
  log::open_file(folder.log_file(job.rank()).string());
  comm::set_flight_folder(folder.log_file(job.rank()).parent_path().string(),
                          command.how.part ? command.how.part->name : "");
  log::info(fmt::format("rank {} of {}, {} threads", job.rank(), job.size(), plan.threads));
  if (rl::num_generators(plan) == 0)
    return train_rank(plan, job, data, folder, resume, command, nullptr);
  const auto train = [&](comm::World& world, rl::Generators& generators) {
    return train_rank(plan, world, data, folder, resume, command, &generators);
  };
  return rl::run_divided(plan, job, *data->train, train);
}

/// Writes a status; if the disk is full or read-only, warns and keeps the job's exit code.
void try_to_note(const std::function<void()>& note) {
  try {
    note();
  } catch (const std::exception& error) {
    log::warn(error.what());
  }
}

std::optional<int> finished_already(const planner::Plan& plan,
                                    const ResumePoint& resume,
                                    const RunFolder& folder,
                                    const TrainCommand& command,
                                    bool owned) {
  const bool early = !resume.stopped_early.empty();
  if (!resume.checkpoint || (resume.position.step < plan.max_steps && !early)) return std::nullopt;
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
                  plan.max_steps));
  return kExitOk;
}

/// Throws Error{Format} for a damaged checkpoint before the ranks start.
void check_resume_point(const ResumePoint& resume, const planner::Plan& plan, bool all_of_it) {
  if (!resume.checkpoint) return;
  const checkpoint::Checkpoint opened = interop::open_training(*resume.checkpoint, plan);
  opened.check_files();
  if (all_of_it || opened.bytes() <= kVerifiedFirst) opened.verify();
}

report::TableFacts table_facts(const planner::Plan& plan,
                               const data::Datasets& data,
                               const RunFolder& folder,
                               const ResumePoint& resume,
                               bool dry_run,
                               std::uint64_t available,
                               bool several_hosts) {
  report::TableFacts facts;
  facts.train_tokens = data.train_tokens;
  facts.validation_tokens = data.validation_tokens;
  facts.train_samples = data.train->size();
  facts.classes = tasks::class_counts_of(*data.train);
  facts.free_disk_bytes = files::free_bytes(folder.path());
  facts.available_memory_bytes = available;
  facts.host = several_hosts ? "several" : launch::machine().host;
  facts.run_dir = folder.path().string();
  facts.resume_step = resume.position.step;
  if (resume.checkpoint) facts.resume_from = resume.checkpoint->string();
  facts.changes = resume.changes;
  const StepSpeed measured = median_speed(folder.path() / "metrics.jsonl");
  facts.tokens_are_known = tasks::as_rl(plan.task.get()) == nullptr;
  if (facts.tokens_are_known) facts.tokens_per_s = measured.tokens_per_s;
  facts.step_s = measured.seconds;
  facts.more_notes = dry_run ? "with -v" : fmt::format("in {}", folder.log_file(0).string());
  return facts;
}

/// Removes the flight recorders of an earlier failure, which `tessera doctor` would read.
void forget_flights(const std::filesystem::path& logs) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(logs, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("flight_rank_")) std::filesystem::remove(entry.path(), ignored);
  }
}

/// Reports which axes cross between hosts, and warns of those that should not.
void tell_of_hosts(const planner::Plan& plan, int ranks_per_host, const TrainCommand& command) {
  const mesh::HostLayoutNotes notes = mesh::host_layout_notes(plan.mesh(), ranks_per_host);
  const std::string engine = comm::link_name(plan.config.run.transport);
  if (!notes.text.empty())
    say(command, fmt::format("hosts       {}; data travels over {}", notes.text, engine));
  for (const std::string& warning : notes.warnings)
    log::warn(warning);
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

/// Returns notes about variables that choose devices in other programs, and their effect here.
std::vector<std::string> answers_to_environment() {
  std::vector<std::string> out;
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "DS_ACCELERATOR"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || std::string_view(value) == "cpu") continue;
    out.push_back(
        fmt::format("{}={} has no effect: ranks compute on the CPU, and -n sets their "
                    "number",
                    name,
                    value));
  }
  return out;
}

/// Prints the first table and logs warnings.
void announce(const planner::Plan& plan,
              const TrainCommand& command,
              const report::TableFacts& facts,
              int local_ranks) {
  if (command.console != nullptr && !command.quiet) {
    for (const std::string& line : report::first_table(plan, facts))
      command.console->line(line);
  }
  if (command.dry_run) tell_notes(plan);
  for (const std::string& warning : planner::warnings_of(plan, local_ranks))
    log::warn(warning);
  if (const std::string warning = report::warning_of_passes(plan, facts); !warning.empty())
    log::warn(warning);
  for (const std::string& answer : answers_to_environment())
    log::warn(answer);
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
hosts::RunFolderCheck folder_check(const planner::Plan& plan) {
  const auto& checkpoint = plan.config.checkpoint;
  const bool saves = checkpoint.final || checkpoint.when().any() || checkpoint.interval_s() ||
                     checkpoint.keeps_best();
  const bool own = checkpoint.use_node_local_storage;
  return {.path = plan.run_dir, .must_be_shared = saves && !own, .must_be_own = saves && own};
}

/// Opens the run folder. While a lost host still holds its lock, hosts that start again wait.
std::unique_ptr<const RunFolder> open_folder(const planner::Plan& plan,
                                             RunFolder::Access access,
                                             bool again) {
  constexpr double kPatienceS = 20.0;
  constexpr std::chrono::milliseconds kRetry{200};
  for (const double deadline = now_s() + kPatienceS;;) {
    try {
      return std::make_unique<const RunFolder>(plan.run_dir, access);
    } catch (const Error&) {
      if (!again || now_s() > deadline) throw;
    }
    std::this_thread::sleep_for(kRetry);
  }
}

/// Trains once, until the ranks have ended. `again`: earlier ranks of this job were lost.
int train_once(planner::Plan plan, const TrainCommand& command, bool again) {
  // Training continues if the reader of its output exits, because the run folder has everything.
  std::signal(SIGPIPE, SIG_IGN);
  // An unknown TESSERA_ISA or TESSERA_KERNELS is refused before a rank starts.
  static_cast<void>(ops::isa());
  static_cast<void>(ops::backend(c10::DeviceType::CPU));
  const std::optional<launch::Launcher> launcher = hosts::detect_launcher();
  const hosts::HostPart* const part = command.how.part.get();
  const bool is_leader = launcher ? launcher->rank == 0 : part == nullptr || part->host == 0;
  const int generators = rl::num_generators(plan);
  const int launched = launcher ? launcher->local_world_size : plan.ranks + generators;
  const int local_ranks = part != nullptr ? part->local_ranks : launched;
  const int first_rank = part != nullptr ? part->first_rank : launcher ? launcher->first_rank() : 0;
  TrainCommand mine = command;
  if (!is_leader) mine.console = nullptr;

  std::optional<launch::EarlyStop> early(std::in_place);
  // Under a launcher only rank 0 owns the folder; the others only write their logs into it.
  const std::unique_ptr<const RunFolder> opened =
      open_folder(plan,
                  !is_leader        ? RunFolder::Access::Look
                  : command.dry_run ? RunFolder::Access::Check
                                    : RunFolder::Access::Own,
                  again);
  const RunFolder& folder = *opened;
  const std::shared_ptr<const checkpoint::Checkpoint> copies = copies_of(part);
  if (again) mine.resume = copies ? ResumeFrom{} : resume_again(command.resume, folder);
  const bool keeps_copies = part != nullptr && part->copies.own >= 0;
  if (is_leader && !again && !keeps_copies && plan.config.checkpoint.peer_copies > 0)
    log::warn("checkpoint.peer_copies has no effect: it needs several hosts of a hostfile");
  const std::shared_ptr<const data::Datasets> data =
      open_data(plan, tokenize_options(plan, mine, *early));
  finish_plan(plan, *data);
  const InputLog inputs(plan.inputs);
  rl::settle_plan(plan, part != nullptr || launcher ? local_ranks : 0);
  // A set of copies, half of what the plan counts, is there already.
  const std::int64_t held = copies ? planner::copy_bytes(plan) / 2 * plan.ranks : 0;
  const std::uint64_t available =
      memory_of_hosts(plan, first_rank, local_ranks) + static_cast<std::uint64_t>(held);
  const planner::MemoryEstimate memory = planner::check_memory(plan, available);
  check_evaluations(plan, *data);
  planner::save_as_memory_allows(plan, memory, available);
  planner::advise_stage(plan, available);
  early->check();

  const ResumePoint resume = find_resume_point(mine.resume, folder, plan, *data, copies);
  if (resume.exists()) finish_plan(plan, *data, resume.position);
  plan.curve = resume.curve;
  if (is_leader && again) {
    say(mine,
        fmt::format("going on after step {}{}",
                    resume.position.step,
                    resume.copies ? ", from the copies in memory" : ""));
  } else if (is_leader) {
    const bool several = local_ranks < plan.ranks + generators;
    report::TableFacts facts =
        table_facts(plan, *data, folder, resume, command.dry_run, available, several);
    facts.memory = memory;
    if (facts.tokens_are_known && facts.tokens_per_s <= 0 && !several && !mine.quiet) {
      facts.tokens_per_s = expected_speed(plan);
      facts.speed_is_estimated = true;
    }
    announce(plan, mine, facts, local_ranks);
    tell_of_hosts(plan, local_ranks, mine);
  }
  if (const auto code = finished_already(plan, resume, folder, mine, is_leader && !command.dry_run))
    return *code;
  if (command.dry_run) early.reset();  // from here on it only reads, which may take long
  check_resume_point(resume, plan, /*all_of_it=*/command.dry_run);
  if (command.dry_run) return kExitOk;

  early->check();
  if (is_leader) {
    if (const auto old = make_room(mine.resume.kind, folder, resume))
      say(mine, fmt::format("{} to {}", old->what, old->where.string()));
    if (!again) forget_flights(folder.log_file(0).parent_path());
    folder.prepare(plan.resolved);
    folder.write_status("running", resume.position.step, 0, "");
  }
  if (launcher) early.reset();  // a launcher's rank handles its signals itself
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
      return run_rank(plan, world, data, folder, resume, mine);
    };
    HowToStart how = command.how;
    how.asked = asked_besides(*data, resume);
    how.facts = [&](const std::function<void()>& alive) {
      return facts_of(plan, *data, resume, alive);
    };
    how.further_ranks = generators;
    how.folder = folder_check(plan);
    code = run_ranks(plan, report, train, training_words(), how);
  } catch (const Error& error) {  // before ranks were started
    if (is_leader) {
      try_to_note([&] {
        folder.write_status("failed", resume.position.step, exit_code(error.kind()), error.what());
      });
    }
    throw;
  }
  if (is_leader) try_to_note([&] { folder.finish_status(code); });
  return code;
}

}  // namespace

int run_training(planner::Plan plan, const TrainCommand& command) {
  TrainCommand mine = command;
  bool stop_asked = false;
  mine.how.stop_asked = &stop_asked;
  // Ranks on several hosts start again on all of them, which the process that started them does.
  const auto launcher = hosts::detect_launcher();
  const bool starts_all = command.how.part == nullptr && !launcher;
  if (launcher && launcher->rank == 0 && plan.config.run.most_restarts() > 0)
    log::warn(fmt::format("run.restarts has no effect: only {} can start its ranks again",
                          launcher->name));
  const int restarts = starts_all ? plan.config.run.most_restarts() : 0;
  bool again = command.how.part != nullptr && command.how.part->generation > 0;
  for (int used = 1;; ++used) {
    const int code = train_once(plan, mine, again);
    if (code != exit_code(Error::Kind::Comm) || stop_asked || used > restarts) return code;
    log::warn(fmt::format(
        "the ranks start again (restart {} of {}, run.restarts) from the newest checkpoint",
        used,
        restarts));
    again = true;
  }
}

}  // namespace tessera::engine
