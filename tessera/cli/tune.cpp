// SPDX-License-Identifier: Apache-2.0
// tessera tune: searches the layout of a training, and measures the best few.
#include "tessera/cli/tune.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/bench_commands.h"
#include "tessera/cli/command.h"
#include "tessera/cli/described_plan.h"
#include "tessera/cli/flags_alone.h"
#include "tessera/cli/merged_config.h"
#include "tessera/cli/ranks.h"
#include "tessera/interop/foreign_flags.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/machine.h"
#include "tessera/predict/many_ranks.h"
#include "tessera/tune/outlook.h"
#include "tessera/tune/session.h"

namespace tessera::cli {
namespace {

struct TuneFlags {
  std::string config, model, data, metric = "throughput", budget = "10m", out;
  std::optional<std::int64_t> ranks;
  std::int64_t trials = 50, steps = 4;
  std::vector<std::string> set, fix;
  bool dry_run = false, overwrite = false;
  MachineFlags machine;
  Common common;
};

bool parse(TuneFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "tune",
      "Searches the layout with which a training is fastest: data, tensor, context and pipeline "
      "parallelism, schedule, experts, ZeRO stage, micro-batch, recomputation, offloading, buckets "
      "and threads, at the same global batch. All layouts are predicted, those that do not fit are "
      "left out, and the best "
      "few are measured in short trials, which learn from each other. Ctrl-C keeps what is known, "
      "and the same command goes on.",
      {"tessera tune my.json -n 2 --budget 10m",
       "tessera tune my.json                       also compares numbers of ranks",
       "tessera tune my.json -n 2 --fix zero_optimization.stage --metric memory",
       "tessera tune my.json -n 64 --device h100 --network ib400     predicts alone",
       "tessera tune my.json -n 2 --hostfile hosts  as many trials at once as there are hosts",
       "tessera tune my.json -n 2 --dry-run        the search without trials"});
  arguments.positional("CONFIG", &words.config, "JSON file; comments are allowed", false);
  arguments.option("--model", &words.model, "Preset, model folder or .gguf file");
  arguments.option("--data", &words.data, "Training data");
  arguments.option(kRanksOption, &words.ranks, "Ranks [the best of 1 to the number of cores]");
  arguments.option("--budget", &words.budget, "Time for trials: 90s, 10m, 2h [10m]");
  arguments.option(
      "--metric", &words.metric, "throughput, latency, flops, memory or cost [throughput]");
  arguments.option("--trials", &words.trials, "Trials at most [50]");
  arguments.option("--steps", &words.steps, "Measured steps of a trial, after two others [4]");
  arguments.option("--fix", &words.fix, "KEY that stays as the configuration has it; repeatable");
  arguments.option("--out", &words.out, "Folder of tuned.json and the trials [runs/NAME-tune]");
  arguments.flag("--overwrite", words.overwrite, "Forget the trials of an earlier search");
  arguments.flag("--dry-run,--dry_run", words.dry_run, "Search without trials");
  words.machine.declare(arguments);
  arguments.option(
      "--set", &words.set, "KEY=VALUE: overrides a key of CONFIG; the value is JSON or a string");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

std::atomic<bool>& stop_asked() {
  static std::atomic<bool> asked{false};
  return asked;
}

/// While it exists, Ctrl-C and SIGTERM ask the search to stop; a second one ends the program.
class StopSignals {
 public:
  StopSignals() {
    struct sigaction action {};
    action.sa_handler = [](int) { stop_asked().store(true); };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, &interrupt_);
    ::sigaction(SIGTERM, &action, &terminate_);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    ::sigaction(SIGTERM, &terminate_, nullptr);
  }

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

double seconds_of(const std::string& budget) {
  std::size_t end = 0;
  double number = 0;
  try {
    number = std::stod(budget, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = budget.substr(end);
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  TESSERA_REQUIRE(end > 0 && factor > 0 && std::isfinite(number) && number > 0,
                  Config,
                  fmt::format("--budget {}: expected a time", budget),
                  "90s, 10m or 2h");
  return number * factor;
}

/// Numbers of ranks that share the cores evenly.
std::vector<int> numbers_of_ranks(int cores) {
  std::vector<int> out;
  for (int ranks = 1; ranks <= cores; ++ranks) {
    if (cores % ranks == 0) out.push_back(ranks);
  }
  return out;
}

void check(const TuneFlags& words) {
  TESSERA_REQUIRE(words.trials >= 1 && words.trials <= 100'000,
                  Config,
                  fmt::format("--trials {}: expected 1 to 100000", words.trials),
                  "");
  TESSERA_REQUIRE(words.steps >= 1 && words.steps <= 10'000,
                  Config,
                  fmt::format("--steps {}: expected 1 to 10000", words.steps),
                  "");
}

}  // namespace

predict::DescribedMachine measured_machine(bool tell) {
  std::error_code ignored;
  if (!std::filesystem::exists(predict::measured_file(), ignored)) {
    const std::vector<std::string> quiet =
        tell ? std::vector<std::string>{} : std::vector<std::string>{"--quiet"};
    bench_machine(quiet);
  }
  predict::DescribedMachine out = predict::find_machine("here");
  return out;
}

void set_trial_command(tune::TuneOptions& options) {
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                     "train",
                     "--quiet",
                     "--resume",
                     "never"};
  options.ranks_of = [](const tune::Choice& choice) {
    return std::vector<std::string>{"-n", std::to_string(choice.ranks)};
  };
  options.interrupted = stopped_by_user;
}

void set_trial_hosts(tune::TuneOptions& options,
                     const HostFlags& flags,
                     const HostChoice& choice,
                     const std::filesystem::path& folder) {
  if (!choice.several) return;
  TESSERA_REQUIRE(!choice.by_hand && (flags.launcher.empty() || flags.launcher == "ssh" ||
                                      flags.launcher == "pdsh"),
                  Unsupported,
                  "trials on several hosts are started over ssh",
                  "remove --launcher and --no_ssh");
  std::filesystem::create_directories(folder);
  for (std::size_t i = 0; i < choice.pool.size(); ++i) {
    const hosts::HostSlots& host = choice.pool[i];
    const std::filesystem::path file = folder / fmt::format("host-{}", i);
    files::write_atomic(file, fmt::format("{} slots={}\n", host.name, host.slots.size()));
    std::vector<std::string> words = {
        "--hostfile", std::filesystem::absolute(file).string(), "--force_multi"};
    const auto add = [&](const char* flag, const std::string& value) {
      if (!value.empty()) words.insert(words.end(), {flag, value});
    };
    add("--master_addr", flags.master_addr);
    add("--ssh_port", flags.ssh_port ? std::to_string(*flags.ssh_port) : "");
    add("--launcher_args", flags.launcher_args);
    options.hosts.push_back(std::move(words));
  }
}

int fewest_slots(const std::vector<hosts::HostSlots>& pool) {
  TESSERA_ASSERT(!pool.empty());
  return static_cast<int>(
      std::ranges::min(pool, {}, [](const auto& host) { return host.slots.size(); }).slots.size());
}

bool stopped_by_user() {
  return stop_asked().load();
}

int show_search(tune::Space& space, const tune::SearchOptions& options, bool as_json) {
  const tune::Found found = tune::search(space, options);
  if (as_json) {
    json::Value out;
    out["choices"] = json::Value::integer(static_cast<std::int64_t>(found.choices));
    out["candidates"] = json::Value::array();
    for (const tune::Candidate& one : found.best) {
      json::Value item = tune::to_json(one.choice);
      item["step_s"] = json::Value::number(one.time.seconds);
      item["tokens_per_s"] = json::Value::number(one.time.tokens_per_s());
      item["mfu"] = json::Value::number(one.time.mfu);
      item["memory_bytes"] = json::Value::integer(one.memory.total());
      out["candidates"].push_back(std::move(item));
    }
    std::printf("%s\n", out.dump(2).c_str());
    return kExitOk;
  }
  std::printf("%s\n",
              fmt::format("search      {} layouts, {} of them simulated, on {}",
                          text::with_commas(static_cast<std::int64_t>(found.choices)),
                          found.predicted,
                          space.machine().title)
                  .c_str());
  for (const tune::Candidate& one : found.best) {
    std::printf("%s\n",
                fmt::format("  {:>9.3f} s  {:>12} tokens/s  {:>9} a rank  {}",
                            one.time.seconds,
                            text::with_commas(static_cast<std::int64_t>(one.time.tokens_per_s())),
                            text::bytes(static_cast<std::uint64_t>(one.memory.total())),
                            tune::text_of(one.choice))
                    .c_str());
  }
  std::printf("not tried\n");
  for (const tune::NotTried& one : found.not_tried)
    std::printf("%s\n", fmt::format("  {}: {}", one.count, one.why).c_str());
  std::printf("the best one differs from the configuration by\n");
  for (const std::string& text : tune::differences(space.own(), found.best.front().choice))
    std::printf("  %s\n", text.c_str());
  return kExitOk;
}

tune::Tuned tune_and_tell(tune::Space& space, tune::TuneOptions& options, bool quiet) {
  options.tell = [quiet](const std::string& text) {
    if (!quiet) std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  };
  const StopSignals signals;
  tune::Tuned out = tune::tune(space, options);
  if (quiet) return out;
  for (const std::string& text : tune::tuned_lines(out, space, options.search.metric))
    std::printf("%s\n", text.c_str());
  std::printf("kept in     %s\n", (options.folder / "tuned.json").c_str());
  return out;
}

namespace {

int tune_command(const std::vector<std::string>& line) {
  std::vector<std::string> rest = line;
  // `--hosts` and its kin describe a machine; these flags name real ones.
  HostFlags host_flags;
  for (const std::string& word : line) {
    if (word == "-H" || word.starts_with("--hostfile")) {
      host_flags = take_host_flags(rest);
      break;
    }
  }
  interop::ForeignFlags foreign = take_foreign_flags_but_machine(rest);
  TuneFlags words;
  if (!parse(words, rest)) return kExitOk;
  check(words);
  const double budget = seconds_of(words.budget);
  tune::check_budget(budget);
  tune::SearchOptions search;
  search.metric = tune::metric_of(words.metric);
  search.fixed = tune::fixed_of(words.fix);
  const std::string path = interop::config_of(words.config, foreign);
  json::Value source = path.empty() ? configuration_from_flags(words.model, words.data, foreign)
                                    : read_configs(words.config, foreign);
  add_model_and_data(words.model, words.data, foreign);
  for (const std::string& note : apply(foreign, source, words.set))
    log::warn(note);
  const int cores = launch::machine().usable_cores;
  HostChoice hosts;
  if (!host_flags.hostfile.empty()) hosts = choose_hosts(host_flags, words.ranks);
  // Trials run on hosts whose cores are not known here.
  if (hosts.several && !words.ranks) words.ranks = fewest_slots(hosts.pool);
  const auto ranks = static_cast<int>(
      std::clamp<std::int64_t>(words.ranks.value_or(1), 0, predict::kMostPlannedRanks + 1));
  const std::string name = path.empty() ? name_from_flags(words.model) : path;
  // The rates of this machine are measured when they are needed first: not for a configuration that
  // is refused.
  (void)tune::Space(source, ranks, name, predict::DescribedMachine());
  if (words.machine.device.empty())
    (void)measured_machine(!words.common.quiet && !words.common.json);
  const predict::DescribedMachine machine = words.machine.machine(ranks);
  // Rates of another CPU say nothing about trials on this one.
  const bool here = words.machine.is_here();

  // A value that the command line sets is meant.
  for (const std::string& assignment : words.set) {
    try {
      const tune::Fixed one = tune::fixed_of({assignment.substr(0, assignment.find('='))});
      tune::add(search.fixed, one);
    } catch (const Error&) {
      continue;  // no search changes this key
    }
  }
  if (here) {
    search.cores = cores;
    search.memory = [](int count) {
      return static_cast<double>(launch::available_memory()) / count;
    };
    if (!words.ranks) search.ranks = numbers_of_ranks(cores);
  }
  tune::Space space(source, ranks, name, machine);
  if (!here || words.dry_run) return show_search(space, search, words.common.json);

  tune::TuneOptions options;
  options.search = std::move(search);
  options.budget_s = budget;
  options.most_trials = static_cast<std::size_t>(words.trials);
  options.steps = words.steps;
  options.folder = words.out.empty() ? std::filesystem::path("runs") /
                                           (std::filesystem::path(name).stem().string() + "-tune")
                                     : std::filesystem::path(words.out);
  options.overwrite = words.overwrite;
  if (!options.search.fixed.bucket && space.own().bucket == 0)
    options.buckets = {1'000'000, 50'000'000};
  set_trial_command(options);
  set_trial_hosts(options, host_flags, hosts, std::filesystem::absolute(options.folder));
  const tune::Metric metric = options.search.metric;
  const tune::Tuned tuned = tune_and_tell(space, options, words.common.quiet || words.common.json);
  if (words.common.json)
    std::printf("%s\n", tune::tuned_json(tuned, space, metric).dump(2).c_str());
  if (stop_asked().load()) return kExitInterrupted;
  return tuned.winner ? kExitOk : kExitIncomplete;
}

TESSERA_COMMAND("tune", "search the layout with which a training is fastest", tune_command);

}  // namespace
}  // namespace tessera::cli
