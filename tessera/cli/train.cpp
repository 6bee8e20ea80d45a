// SPDX-License-Identifier: Apache-2.0
// tessera train: applies the command line to a configuration and runs the training.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/autotuning.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/device_choice.h"
#include "tessera/cli/elastic.h"
#include "tessera/cli/flags_alone.h"
#include "tessera/cli/folds.h"
#include "tessera/cli/foreign_program.h"
#include "tessera/cli/host_flags.h"
#include "tessera/cli/merged_config.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/rollout_ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/cli/train_plan.h"
#include "tessera/comm/registry.h"
#include "tessera/config/overrides.h"
#include "tessera/hosts/cluster_launcher.h"
#include "tessera/hosts/coordinator_client.h"
#include "tessera/hosts/copy_server.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/hosts/run_on_hosts.h"
#include "tessera/interop/foreign_command.h"
#include "tessera/interop/foreign_flags.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/local_start.h"
#include "tessera/mesh/host_layout.h"
#include "tessera/models/family.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"

namespace tessera::cli {
namespace {

struct TrainFlags {
  std::string config;
  std::optional<std::int64_t> ranks, folds;
  std::string model, data;
  std::vector<std::string> set;
  std::string resume = "auto";
  bool dry_run = false;
  Common common;
};

bool parse(TrainFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "train",
      "Trains a model as configured by CONFIG, on one or more ranks.\n\n" + host_flags_help() +
          "\n" + interop::foreign_flags_help(),
      {"tessera train my.json",
       "tessera train my.json -n 2",
       "tessera train --model gpt2-small --data my.txt     without a file",
       "tessera train my.json --set optimizer.lr=3e-4 --set trainer.max_steps=1000",
       "tessera train my.json --dry-run          check everything without training",
       "tessera train my.json --resume never     start over; the old contents are moved aside",
       "tessera train my.json --folds 5          cross-validation: five trainings, one table"});
  arguments.positional(
      "CONFIG", &words.config, "JSON file; comments are allowed", /*required=*/false);
  arguments.option("--model", &words.model, "Preset, model folder or .gguf file");
  arguments.option("--data", &words.data, "Training data");
  arguments.option(kRanksOption, &words.ranks, "Local ranks [1]");
  arguments.option(
      "--set", &words.set, "KEY=VALUE: overrides a key of CONFIG; the value is JSON or a string");
  arguments.option(
      "--resume", &words.resume, "auto, never, or the path of a run or checkpoint [auto]");
  arguments.option("--folds",
                   &words.folds,
                   "Divide the records of data.train into that many parts, train once for each "
                   "with that part held out, and print the evaluations with their mean [none]");
  arguments.flag("--dry-run,--dry_run",
                 words.dry_run,
                 "Check everything and print the table without training");
  arguments.common(words.common, /*has_json=*/true);
  std::vector<std::string> taken = interop::foreign_flag_names();
  for (std::string& name : host_flag_names())
    taken.push_back(std::move(name));
  arguments.also(std::move(taken));
  return arguments.parse(line);
}

json::Value memory_json(const planner::Plan& plan) {
  const planner::MemoryEstimate need = planner::estimate_memory(plan);
  json::Value out = json::Value::object({{"parameters", json::Value::integer(need.parameters)},
                                         {"gradients", json::Value::integer(need.gradients)},
                                         {"optimizer", json::Value::integer(need.optimizer)},
                                         {"activations", json::Value::integer(need.activations)},
                                         {"messages", json::Value::integer(need.messages)},
                                         {"other", json::Value::integer(need.other)},
                                         {"copies", json::Value::integer(need.copies)},
                                         {"shared", json::Value::integer(need.shared)}});
  if (!need.unknown.empty()) {
    out["activations"] = json::Value();
    out["why_unknown"] = json::Value::string(need.unknown);
  }
  return out;
}

// Prints one JSON object: the plan, and after a run its result.
void print_json(const planner::Plan& plan, int code, bool dry_run) {
  json::Value out;
  out["exit_code"] = json::Value::integer(code);
  out["run_dir"] = json::Value::string(plan.run().dir);
  const models::Resolved& model = planner::model_of(plan);
  out["parameters"] = json::Value::integer(model.num_parameters);
  if (model.inactive_parameters > 0)
    out["active_parameters"] = json::Value::integer(model.active_parameters());
  out["memory_per_rank"] = memory_json(plan);
  if (dry_run) {
    out["config"] = plan.resolved();
  } else {
    const std::filesystem::path status = std::filesystem::path(plan.run().dir) / "status.json";
    std::error_code ignored;
    if (std::filesystem::exists(status, ignored)) {
      out["status"] = json::parse_strict(files::read(status), status.string());
    }
  }
  std::printf("%s\n", out.dump().c_str());
}

/// Prints which ranks run where.
void print_hosts(const hosts::HostPool& pool) {
  int first = 0;
  for (const hosts::HostSlots& host : pool) {
    const int count = static_cast<int>(host.slots.size());
    const std::string ranks = count == 1 ? fmt::format("rank {}", first)
                                         : fmt::format("ranks {}-{}", first, first + count - 1);
    std::printf("host        %s: %s\n", host.name.c_str(), ranks.c_str());
    first += count;
  }
}

/// Returns how many of the ranks run on one host.
int local_ranks_of(const hosts::HostPart* part, const HostChoice& choice, int ranks) {
  if (part != nullptr) return part->local_ranks;
  if (choice.several) return static_cast<int>(choice.pool.front().slots.size());
  const auto launcher = hosts::detect_launcher();
  return launcher ? launcher->local_world_size : ranks;
}

/// Sets defaults for several hosts unless the configuration sets the keys: the ranks of each host
/// share its cores, and gradients are reduced once per step, not once per micro-batch.
void set_defaults_of_hosts(json::Value& source, int ranks, int local_ranks) {
  if (local_ranks == ranks || !source.is_object()) return;
  const json::Value* const run = source.find("run");
  const bool has_threads =
      run != nullptr && run->is_object() && run->find("threads_per_rank") != nullptr;
  const std::string why = "several hosts";
  if (!has_threads) {
    config::set_key(source,
                    "run.threads_per_rank",
                    json::Value::integer(hosts::threads_per_rank(local_ranks)),
                    why);
  }
  if (source.find("gradient_reduction") != nullptr) return;
  // The bits of an elastic training do not depend on how many hosts are left.
  const char* const reduction = is_elastic(source) ? "each" : "once";
  config::set_key(source, "gradient_reduction", json::Value::string(reduction), why);
}

/// Throws if the hosts have different numbers of ranks, so that `key` "auto" has no meaning.
void require_equal_hosts(const std::string& key,
                         const planner::Plan& plan,
                         int local_ranks,
                         const hosts::HostPart* part,
                         const hosts::HostPool& pool) {
  std::vector<std::string> hosts;
  std::size_t fewest = static_cast<std::size_t>(local_ranks);
  bool equal = part == nullptr ? plan.ranks() % local_ranks == 0
                               : part->hosts * local_ranks == part->world_size;
  for (const hosts::HostSlots& host : pool) {
    hosts.push_back(fmt::format("{} has {}", host.name, host.slots.size()));
    equal = equal && host.slots.size() == pool.front().slots.size();
    fewest = std::min(fewest, host.slots.size());
  }
  TESSERA_REQUIRE(
      equal,
      Config,
      fmt::format("{}: \"auto\" means the ranks of a host, and the hosts have different numbers of "
                  "ranks{}{}",
                  key,
                  hosts.empty() ? "" : ": ",
                  text::join_some(hosts, ", ")),
      fmt::format("use as many ranks of each host (-n {}), or write a number that divides the {} "
                  "ranks that share the layers",
                  fewest,
                  planner::data_ranks_of(plan)));
}

/// Replaces "auto" for the sizes of groups that hold the weights by the ranks of a host. `plan`:
/// made from `source`, where "auto" means that the key is absent. `pool`: the hosts, if they are
/// known. Returns whether there was one.
bool set_groups_of_hosts(json::Value& source,
                         const planner::Plan& plan,
                         int local_ranks,
                         const hosts::HostPart* part,
                         const hosts::HostPool& pool) {
  if (local_ranks >= plan.ranks()) return false;
  const json::Value* const zero = source.find("zero_optimization");
  bool found = false;
  for (const char* name : {"zero_hpz_partition_size", "mics_shard_size"}) {
    const json::Value* const value =
        zero != nullptr && zero->is_object() ? zero->find(name) : nullptr;
    if (value == nullptr || !value->is_string() || value->as_string() != "auto") continue;
    const std::string key = json::join_path("zero_optimization", name);
    require_equal_hosts(key, plan, local_ranks, part, pool);
    config::set_key(source,
                    key,
                    json::Value::integer(mesh::group_of_host(plan.mesh(), local_ranks)),
                    "several hosts");
    found = true;
  }
  return found;
}

/// Throws if run.transport cannot be used, and warns if it has no effect.
void check_transport(const planner::Plan& plan, bool several_hosts) {
  const std::string& link = plan.run().options.transport;
  if (several_hosts) return comm::check_link(link);
  const auto launcher = hosts::detect_launcher();
  const bool usual = comm::link_name(link) == comm::link_name("auto");
  if (usual || (launcher && launcher->rank != 0)) return;
  log::warn(fmt::format("run.transport: \"{}\" has no effect: all ranks are on one host", link));
}

/// Returns the configuration of the file, or of the flags if `path` is empty, with their changes.
json::Value configured(const std::string& path, TrainFlags& words, interop::ForeignFlags& foreign) {
  json::Value source = path.empty() ? configuration_from_flags(words.model, words.data, foreign)
                                    : read_configs(words.config, foreign);
  add_model_and_data(words.model, words.data, foreign);
  for (const std::string& note : apply(foreign, source, words.set))
    log::warn(note);
  return source;
}

/// Returns the configuration that a command of another program means, with the changes of --set.
json::Value configured(interop::ForeignCommand& command, TrainFlags& words) {
  for (const std::string& note : command.notes)
    log::warn(note);
  const bool least = !command.ranks_note.empty();
  if (!words.ranks && !(least && hosts::detect_launcher())) {
    if (least) log::warn(command.ranks_note);
    words.ranks = command.ranks;
  }
  for (const std::string& assignment : words.set)
    config::apply_override(command.source, assignment);
  return command.source;
}

/// A command of another program (`torchrun ... run_clm.py ...`) in place of CONFIG, if the line is
/// one; its options are then removed from `rest`.
std::optional<interop::ForeignCommand> take_command(std::vector<std::string>& rest) {
  if (!interop::is_foreign_command(rest)) return std::nullopt;
  interop::ForeignCommand command = interop::read_foreign_command(rest);
  rest = command.host_words;
  rest.insert(rest.end(), command.own_words.begin(), command.own_words.end());
  return command;
}

/// The words of a command line without --folds and --json.
std::vector<std::string> without_folds(const std::vector<std::string>& line) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == "--json" || line[i].starts_with("--folds=")) continue;
    if (line[i] == "--folds") {
      ++i;
      continue;
    }
    out.push_back(line[i]);
  }
  return out;
}

int train_part(const std::vector<std::string>& line, std::shared_ptr<const hosts::HostPart> part);

/// Trains once for each fold. `plan`: that of the first fold, without a folder of its own.
int cross_validate(const TrainFlags& words,
                   const std::vector<std::string>& line,
                   const planner::Plan& plan,
                   bool sets_every) {
  TESSERA_REQUIRE(!hosts::detect_launcher(),
                  Unsupported,
                  "not supported under a launcher, which starts a single job: --folds",
                  "start it without the launcher: tessera train CONFIG --folds 5 -n 2");
  TESSERA_REQUIRE(
      words.resume == "auto" || words.resume == "never",
      Config,
      fmt::format("--resume {} with --folds: each fold has a run of its own", words.resume),
      "give auto or never, or begin from other weights with model.from");
  const tasks::EvalOptions& eval = plan.run().eval;
  const bool best = !eval.best.is_null() || eval.stops_early();
  return train_folds({.line = without_folds(line),
                      .folds = *words.folds,
                      .dir = plan.run().dir,
                      .rule = best ? std::optional(eval.rule()) : std::nullopt,
                      .sets_every = sets_every,
                      .dry_run = words.dry_run,
                      .quiet = words.common.quiet,
                      .as_json = words.common.json},
                     [](const std::vector<std::string>& own) { return train_part(own, nullptr); });
}

/// Trains on the ranks of `part` or, if it is null, on those that the command line chooses.
int train_part(const std::vector<std::string>& line, std::shared_ptr<const hosts::HostPart> part) {
  std::vector<std::string> rest = line;
  go_on_without_a_reader();
  std::optional<interop::ForeignCommand> typed = take_command(rest);
  for (const std::string& word : rest)
    refuse_script(word, rest);
  HostFlags hosts = take_host_flags(rest);
  interop::ForeignFlags foreign = interop::take_foreign_flags(rest);
  TrainFlags words;
  if (!parse(words, rest)) return kExitOk;
  const std::string path = interop::config_of(words.config, foreign);
  for (const std::string& note : foreign.notes)
    log::warn(note);

  json::Value source = typed ? configured(*typed, words) : configured(path, words, foreign);
  if (!part) {
    for (const std::string& note : use_hosts_key(hosts, source))
      log::warn(note);
  }
  const HostChoice choice = part ? HostChoice{} : choose_hosts(hosts, words.ranks);
  for (const std::string& note : choice.notes)
    log::warn(note);
  int ranks = 0;
  if (part) {
    ranks = part->world_size;
  } else {
    ranks = choice.pool.empty() ? ranks_of(words.ranks) : hosts::num_slots(choice.pool);
  }
  apply_elastic_flags(hosts, source);
  choose_devices(source, choice);
  const auto launcher = hosts::detect_launcher();
  const int all_ranks = ranks, local_ranks = local_ranks_of(part.get(), choice, ranks);
  set_defaults_of_hosts(source, all_ranks, local_ranks);
  ranks = ranks_that_learn(source, ranks, local_ranks);
  const bool sets_every = words.folds && set_fold(source, *words.folds, 1);
  const std::string name = typed          ? typed->name
                           : path.empty() ? name_from_flags(words.model)
                                          : name_of_config(path);
  // An elastic training leaves slots unused that cannot share the batch.
  const auto make_plan = [&] {
    return choice.several && is_elastic(source) ? plan_of_most_ranks(source, ranks, name)
                                                : planner::make_plan(source, ranks, name);
  };
  planner::Plan plan = make_plan();
  if (words.folds) return cross_validate(words, line, plan, sets_every);
  if (set_groups_of_hosts(source, plan, local_ranks, part.get(), choice.pool)) plan = make_plan();
  check_transport(plan, local_ranks < all_ranks);
  if (typed && words.dry_run && !words.common.quiet && !words.common.json) {
    for (const std::string& one : meaning_lines(*typed))
      std::puts(one.c_str());
  }

  std::optional<hosts::ElasticOptions> elastic;
  if (choice.several) {
    elastic = elastic_options(plan, source, name, static_cast<int>(choice.pool.size()));
    check_start_on_hosts(hosts, choice, elastic.has_value());
  }
  if (choice.several && words.dry_run && !words.common.quiet && !words.common.json)
    print_hosts(choice.pool);
  if (choice.several && words.dry_run) {
    // A dry run: the plan is that of a host with as many ranks as the first one.
    hosts::HostPart first;
    first.hosts = static_cast<int>(choice.pool.size());
    first.local_ranks = static_cast<int>(choice.pool.front().slots.size());
    first.world_size = all_ranks;
    part = std::make_shared<hosts::HostPart>(first);
  }
  if (choice.several && !words.dry_run) {
    // The configuration is read here first, so that a mistake is reported only once.
    if (!choice.by_hand || *hosts.node_rank == 0) {
      return train_on_hosts(hosts,
                            choice,
                            line,
                            words.common.quiet || words.common.json,
                            elastic ? &*elastic : nullptr);
    }
    part = std::make_shared<hosts::HostPart>(part_by_hand(hosts, choice.pool));
  }
  Terminal terminal;
  const engine::TrainCommand command{.resume = engine::resume_from(words.resume),
                                     .dry_run = words.dry_run,
                                     .quiet = words.common.quiet || words.common.json,
                                     .console = &terminal,
                                     .how = {local_start(hosts), part}};
  std::optional<launch::PidFile> pid_file;
  if (hosts.save_pid) pid_file.emplace();
  const int code = train_plan(plan, command);
  const bool is_leader = launcher ? launcher->rank == 0 : !part || part->host == 0;
  if (words.common.json && is_leader)
    print_json(plan, code, words.dry_run);
  else if (!words.dry_run && reader_has_gone())
    std::clearerr(stdout);  // the folder of the run has everything that nobody read
  return code;
}

int train(const std::vector<std::string>& line) {
  std::vector<std::string> rest = line;
  if (const auto mode = take_autotuning(rest)) return autotune(*mode, rest);
  return train_part(line, nullptr);
}

/// Reads what hosts::run_job_on_hosts() writes; the stream stays open as long as the job runs.
std::string read_job() {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  std::string text;
  for (int c = std::getchar(); c != EOF && text.size() < kMostBytes; c = std::getchar()) {
    text += static_cast<char>(c);
    if (text.ends_with("\nend\n")) break;
  }
  return text;
}

/// The agent of a host: starts, watches and ends the ranks of this host.
int agent(const std::vector<std::string>& line) {
  Common common;
  Arguments arguments(
      "agent",
      "Starts and watches the ranks of this host. `tessera train --hostfile` runs it on every "
      "host\n"
      "and writes the job to its standard input; there is no reason to run it by hand.",
      {"ssh HOST tessera agent < job"});
  arguments.common(common, /*has_json=*/false);
  if (!arguments.parse(line)) return kExitOk;
  std::optional<hosts::ClusterAgent> agent = hosts::ClusterAgent::find();
  hosts::AgentJob job = agent ? agent->job() : hosts::parse_agent_job(read_job());
  const auto part = std::make_shared<hosts::HostPart>(std::move(job.part));
  // The launcher would end the other hosts at once because of another code than 0.
  const auto end = [&](int code, const std::optional<hosts::HostProblem>& problem) {
    return agent && agent->report_end(code, problem) ? kExitOk : code;
  };
  try {
    const int code = train_part(job.words, part);
    std::fflush(nullptr);
    return end(code, std::nullopt);
  } catch (const hosts::Refusal& refusal) {
    return end(exit_code(refusal.kind()), std::nullopt);
  } catch (const Error& error) {
    // The process that started the hosts reports it, once for all hosts with this error.
    const int code = exit_code(error.kind());
    const hosts::HostProblem problem{error.kind(), error.what(), error.fix()};
    const bool told = hosts::report_end(*part, code, problem);
    if (!told) throw;
    return agent ? kExitOk : code;
  }
}

/// Keeps copies of the training state in the memory of a host.
int copy_server(const std::vector<std::string>& line) {
  Common common;
  Arguments arguments(
      "copy-server",
      "Keeps copies of a training's state in the memory of this host (checkpoint.peer_copies).\n"
      "`tessera train --hostfile` runs it on every host; there is no reason to run it by hand.",
      {"ssh HOST tessera copy-server < request"});
  arguments.common(common, /*has_json=*/false);
  if (!arguments.parse(line)) return kExitOk;
  hosts::run_copy_server();
  return kExitOk;
}

TESSERA_COMMAND("agent", "", agent);
TESSERA_COMMAND("copy-server", "", copy_server);
TESSERA_COMMAND("train", "train a model from a configuration", train);

}  // namespace
}  // namespace tessera::cli
