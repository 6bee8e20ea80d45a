// SPDX-License-Identifier: Apache-2.0
#include "tessera/tune/trial.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/process.h"
#include "tessera/base/text.h"
#include "tessera/config/overrides.h"

namespace tessera::tune {
namespace {

namespace fs = std::filesystem;

constexpr std::array kOutcomes = {std::pair("measured", Outcome::Measured),
                                  std::pair("stopped", Outcome::Stopped),
                                  std::pair("failed", Outcome::Failed),
                                  std::pair("timed out", Outcome::TimedOut),
                                  std::pair("interrupted", Outcome::Interrupted)};

std::string read_if_there(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) ? files::read(path) : std::string();
}

/// The times of the steps of a metrics.jsonl from `first` on, and the peak memory of the last one.
struct Steps {
  std::vector<double> seconds;
  std::int64_t memory = 0;
};
Steps steps_of(const fs::path& metrics, std::int64_t first) {
  Steps out;
  for (const std::string& line : text::split(read_if_there(metrics), '\n')) {
    json::Value value;
    try {
      if (text::trim(line).empty()) continue;
      value = json::parse_strict(line, metrics.string());
    } catch (const Error&) {
      continue;  // a line that is being written
    }
    const json::Value *const step = value.find("step"), *const seconds = value.find("step_ms"),
                             *const memory = value.find("mem_peak_bytes");
    if (step == nullptr || seconds == nullptr || !seconds->is_number()) continue;
    if (memory != nullptr && memory->is_number())
      out.memory = std::max(out.memory, memory->as_integer().value_or(0));
    if (step->as_integer().value_or(0) >= first) out.seconds.push_back(seconds->as_double() / 1000);
  }
  return out;
}

/// A child process in a group of its own, which ends with the object.
class Child {
 public:
  Child(const std::vector<std::string>& words, const fs::path& folder) {
    const int out = files::create_own(folder / "stdout.log"),
              error = files::create_own(folder / "stderr.log"),
              nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    pid_ = spawn_in_group(words, {{nothing, 0}, {out, 1}, {error, 2}});
    for (const int descriptor : {nothing, out, error})
      ::close(descriptor);
    TESSERA_REQUIRE(
        pid_ > 0, Io, fmt::format("{} cannot be started for a trial", words.front()), "");
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { end(); }

  /// Returns whether it has ended by itself; code() is known then.
  bool ended() {
    int status = 0;
    if (pid_ <= 0) return true;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ::kill(-pid_, SIGKILL);  // ranks that are left
    pid_ = -1;
    return true;
  }
  void end() {
    if (pid_ <= 0) return;
    // The supervisor of the trial's ranks ends them and removes what they share.
    constexpr double kPatience = 10;
    ::kill(pid_, SIGTERM);
    const double begin = now_s();
    while (!ended()) {
      if (now_s() - begin > kPatience) ::kill(-pid_, SIGKILL);
      nap();
    }
  }
  static void nap() {
    constexpr timespec kNap{.tv_sec = 0, .tv_nsec = 20'000'000};
    ::nanosleep(&kNap, nullptr);
  }
  [[nodiscard]] int code() const { return code_; }

 private:
  pid_t pid_ = -1;
  int code_ = 0;
};

/// The configuration of a trial: nothing but steps.
json::Value short_training(const json::Value& config, const TrialOptions& options) {
  json::Value out = config;
  config::drop_evaluation(out);
  const auto set = [&](const char* key, json::Value value) {
    config::set_key(out, key, std::move(value), "tessera tune");
  };
  set("trainer.max_steps", json::Value::integer(options.first_step + options.steps - 1));
  set("run.dir", json::Value::string((options.folder / "run").string()));
  set("checkpoint.every", json::Value::integer(0));
  set("checkpoint.every_minutes", json::Value::integer(0));
  set("checkpoint.final", json::Value::boolean(false));
  set("checkpoint.save_on_signal", json::Value::boolean(false));
  return out;
}

}  // namespace

std::string name(Outcome outcome) {
  for (const auto& [word, one] : kOutcomes) {
    if (one == outcome) return word;
  }
  TESSERA_ASSERT(false);
}

Outcome outcome_of(const std::string& name) {
  for (const auto& [word, one] : kOutcomes) {
    if (name == word) return one;
  }
  throw Error(Error::Kind::Format,
              fmt::format("unknown outcome of a trial: {}", text::printable(name)),
              "remove the file, and tune again");
}

std::pair<double, double> median_and_error(std::vector<double> values) {
  if (values.empty()) return {0, 0};
  const auto middle = [](std::vector<double>& of) {
    std::ranges::sort(of);
    const std::size_t n = of.size();
    return n % 2 == 1 ? of[n / 2] : (of[n / 2 - 1] + of[n / 2]) / 2;
  };
  const double median = middle(values);
  std::vector<double> away;
  for (const double value : values)
    away.push_back(std::abs(value - median));
  // 1.4826 and 1.2533: of a normal distribution, for its deviation and for the error of its median.
  const double deviation = 1.4826 * middle(away);
  return {median, 1.2533 * deviation / std::sqrt(static_cast<double>(values.size()))};
}

std::string error_in(const std::string& output) {
  std::string last, found;
  for (const std::string& line : text::split(output, '\n')) {
    const std::string_view plain = text::trim(line);
    if (plain.empty()) continue;
    if (plain.starts_with("error: ")) found = plain.substr(7);
    last = plain;
  }
  return text::printable(found.empty() ? last : found);
}

TrialResult run_trial(const json::Value& config, const TrialOptions& options) {
  const double begin = now_s();
  std::error_code ignored;
  fs::create_directories(options.folder);
  fs::remove_all(options.folder / "run", ignored);
  const fs::path file = options.folder / "config.json";
  files::write_atomic(file, short_training(config, options).dump(2) + "\n");
  const fs::path metrics = options.folder / "run" / "metrics.jsonl";
  std::vector<std::string> words = options.command;
  words.insert(words.begin() + 2, file.string());
  TrialResult out;
  const auto take = [&](const Steps& steps) {
    std::tie(out.step_s, out.error_s) = median_and_error(steps.seconds);
    out.steps = std::ssize(steps.seconds);
    out.memory_bytes = steps.memory;
  };
  Child child(words, options.folder);
  for (;;) {
    const bool ended = child.ended();
    const Steps steps = steps_of(metrics, options.first_step);
    take(steps);
    if (ended) {
      out.exit_code = child.code();
      out.outcome = out.steps >= 1 && out.exit_code == 0 ? Outcome::Measured : Outcome::Failed;
      break;
    }
    if (out.steps >= options.steps) {
      out.outcome = Outcome::Measured;
      break;
    }
    if (options.interrupted && options.interrupted()) {
      out.outcome = Outcome::Interrupted;
      break;
    }
    if (options.clearly_slower_s > 0 && out.steps >= 2 && out.step_s > options.clearly_slower_s) {
      out.outcome = Outcome::Stopped;
      break;
    }
    if (now_s() - begin > options.most_seconds) {
      out.outcome = out.steps >= 2 ? Outcome::Measured : Outcome::TimedOut;
      break;
    }
    Child::nap();
  }
  child.end();
  out.wall_s = now_s() - begin;
  if (out.outcome == Outcome::Failed) {
    out.error = error_in(read_if_there(options.folder / "stderr.log"));
    if (out.error.empty()) out.error = fmt::format("it ended with {}", out.exit_code);
  }
  fs::remove_all(options.folder / "run", ignored);
  return out;
}

}  // namespace tessera::tune
