// SPDX-License-Identifier: Apache-2.0
// tessera launch: starts a program of the user several times, as the ranks of one job.
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/hosts/hostfile.h"

namespace tessera::cli {
namespace {

/// Time for the other ranks to end by themselves after one has failed, then after SIGTERM.
constexpr double kGraceS = 10.0;

/// Returns the index of the script: the first word that is neither an option nor the value of one.
std::size_t script_in(const std::vector<std::string>& words) {
  static constexpr std::array kWithValue = {
      "-n", "--nproc-per-node", "--nproc_per_node", "--num-gpus", "--num_gpus"};
  for (std::size_t at = 0; at < words.size(); ++at) {
    if (std::ranges::find(kWithValue, words[at]) != kWithValue.end()) {
      ++at;
    } else if (!words[at].starts_with("-")) {
      return at;
    }
  }
  return words.size();
}

/// The command line of every rank: a .py file runs in the Python that TESSERA_PYTHON names.
std::vector<std::string> line_of(std::vector<std::string> words) {
  if (words.front().ends_with(".py")) {
    const char* const python = std::getenv("TESSERA_PYTHON");
    words.insert(words.begin(), python != nullptr && *python != '\0' ? python : "python3");
  }
  return words;
}

/// Sets what torchrun sets, by which libraries find the ranks of a job.
void set_variables(int rank, int ranks, pid_t launcher, const std::string& job) {
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  for (const char* name : {"RANK", "LOCAL_RANK"})
    set(name, std::to_string(rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"})
    set(name, std::to_string(ranks));
  set("GROUP_RANK", "0");
  set("GROUP_WORLD_SIZE", "1");
  set("TORCHELASTIC_RUN_ID", job);
  if (std::getenv("MASTER_ADDR") == nullptr) set("MASTER_ADDR", "127.0.0.1");
  if (std::getenv("MASTER_PORT") == nullptr) {
    constexpr int kFirst = 20000, kPorts = 20000;  // below the ports that the kernel hands out
    set("MASTER_PORT", std::to_string(kFirst + launcher % kPorts));
  }
}

/// Never returns.
[[noreturn]] void become(const std::vector<std::string>& line, const sigset_t& mask) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  std::vector<char*> words;
  for (const std::string& word : line)
    words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words.front(), words.data());
  std::fprintf(stderr, "error: cannot start %s: %s\n", words.front(), std::strerror(errno));
  ::_exit(exit_code(Error::Kind::Environment));
}

int code_of(int status) {
  constexpr int kSignalled = 128;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled + WTERMSIG(status);
}

/// The processes of the ranks. Signals are those that the terminal or a scheduler sends.
class Ranks {
 public:
  Ranks(const std::vector<std::string>& line, int ranks) : pids_(static_cast<std::size_t>(ranks)) {
    sigset_t before;
    sigemptyset(&waited_);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1})
      sigaddset(&waited_, signal);
    ::sigprocmask(SIG_BLOCK, &waited_, &before);
    const pid_t launcher = ::getpid();
    const std::string job = fmt::format("tessera-{}-{:.0f}", launcher, now_s() * 1000);
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        set_variables(rank, ranks, launcher, job);
        become(line, before);
      }
      pids_[static_cast<std::size_t>(rank)] = pid;
      if (pid < 0) {
        const std::string why = std::strerror(errno);
        send(SIGKILL);
        throw Error(Error::Kind::Environment, "cannot start a process: " + why, "use fewer ranks");
      }
    }
  }

  /// Returns the exit code of the first rank that failed, or 0.
  int wait() {
    while (reap() > 0) {
      timespec patience = {.tv_sec = 0, .tv_nsec = 200'000'000};
      const int signal = ::sigtimedwait(&waited_, nullptr, &patience);
      // Ctrl-C has reached the ranks too, which belong to the same terminal.
      if (signal == SIGTERM || signal == SIGUSR1) send(signal);
      if (!failed_at_) continue;
      const double since = now_s() - *failed_at_;
      if (since > 2 * kGraceS) {
        send(SIGKILL);
      } else if (since > kGraceS && !std::exchange(asked_, true)) {
        send(SIGTERM);
      }
    }
    return code_;
  }

 private:
  /// Notes the ranks that have ended and returns the number of those that run.
  int reap() {
    int running = 0;
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
      if (pids_[rank] == 0) continue;
      int status = 0;
      if (::waitpid(pids_[rank], &status, WNOHANG) == 0) {
        ++running;
        continue;
      }
      pids_[rank] = 0;
      const int code = code_of(status);
      if (code == 0 || failed_at_) continue;
      failed_at_ = now_s();
      code_ = code;
      std::fprintf(stderr, "error: rank %zu ended with exit code %d\n", rank, code);
    }
    return running;
  }

  void send(int signal) const {
    for (const pid_t pid : pids_) {
      if (pid > 0) ::kill(pid, signal);
    }
  }

  std::vector<pid_t> pids_;  ///< 0: has ended
  sigset_t waited_ = {};
  std::optional<double> failed_at_;
  bool asked_ = false;
  int code_ = 0;
};

int launch_command(const std::vector<std::string>& words) {
  Common common;
  std::int64_t ranks = 1;
  std::string script;
  Arguments arguments("launch",
                      "Starts a script of yours as the ranks of one job on this host, with the "
                      "variables that torchrun sets; "
                      "tessera.initialize() in it joins them. If a rank fails, the others end, and "
                      "its exit code is returned.",
                      {"tessera launch -n 4 my_training.py --epochs 3",
                       "TESSERA_PYTHON=venv/bin/python tessera launch -n 2 my_training.py"});
  arguments.option("-n,--nproc-per-node,--nproc_per_node,--num-gpus,--num_gpus",
                   &ranks,
                   "Number of ranks, each a process");
  arguments.positional("script",
                       &script,
                       "A .py file, for which TESSERA_PYTHON names the Python, or a program; the "
                       "words after it are its own");
  arguments.common(common);
  const std::size_t at = script_in(words);
  const auto own = words.begin() + static_cast<std::ptrdiff_t>(std::min(at + 1, words.size()));
  if (!arguments.parse({words.begin(), own})) return kExitOk;
  TESSERA_REQUIRE(ranks >= 1 && ranks <= hosts::kMostSlots,
                  Config,
                  fmt::format("-n {}: expected 1 to {} ranks a host", ranks, hosts::kMostSlots),
                  "give the number of processes to start");
  std::vector<std::string> line = {script};
  line.insert(line.end(), own, words.end());
  return Ranks(line_of(std::move(line)), static_cast<int>(ranks)).wait();
}

TESSERA_COMMAND("launch", "start a script of yours on several ranks", launch_command);

}  // namespace
}  // namespace tessera::cli
