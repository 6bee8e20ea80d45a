// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/remote.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/head.h"
#include "tessera/launch/rank_end.h"
#include "tessera/launch/shared_files.h"
#include "tessera/launch/supervisor.h"

namespace tessera::launch {
namespace {

constexpr int kTickMs = 50;
constexpr double kSameSignalS = 0.1;
/// Bytes of output after which an unfinished line is passed on.
constexpr std::size_t kMostLine = std::size_t{1} << 16;
/// After the world is broken, agents end their ranks within the grace period of a supervisor.
constexpr double kAgentGraceS = 8.0;
constexpr double kOwnProblemsS = 3.0;
/// Exit codes of ssh, and of a shell.
constexpr int kSshFailed = 255, kNotFound = 127;

/// Quotes a word for the shell of another host.
std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word)
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// Returns the address of this host on the route to `name`; finding the route sends nothing.
std::string address_towards(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(name.c_str(), "9", &hints, &list);
  TESSERA_REQUIRE(
      error == 0,
      Config,
      fmt::format("host {} has no address: {}", name, gai_strerror(error)),
      "correct its name in the hostfile, or give this host's address with --master_addr");
  std::array<char, NI_MAXHOST> text{};
  const Fd fd(socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  const bool known = connect(fd.get(), list->ai_addr, list->ai_addrlen) == 0 &&
                     getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                     getnameinfo(reinterpret_cast<const sockaddr*>(&own),
                                 length,
                                 text.data(),
                                 text.size(),
                                 nullptr,
                                 0,
                                 NI_NUMERICHOST) == 0;
  freeaddrinfo(list);
  TESSERA_REQUIRE(known,
                  Config,
                  fmt::format("there is no way from this host to {}", name),
                  "give an address of this host that the others reach: --master_addr");
  return text.data();
}

std::string master_address(const RemoteOptions& options) {
  if (!options.master_address.empty()) return options.master_address;
  for (const HostSlots& host : options.pool) {
    if (!is_this_host(host.name)) return address_towards(host.name);
  }
  return "127.0.0.1";
}

std::pair<Fd, Fd> make_pipe() {
  std::array<int, 2> ends{-1, -1};
  TESSERA_REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0,
                  Environment,
                  fmt::format("no pipe for an agent: {}", std::strerror(errno)),
                  "ulimit -n 4096");
  return {Fd(ends[0]), Fd(ends[1])};
}

/// One agent, or the ssh that leads to it.
struct Agent {
  std::string host;
  pid_t pid = 0;
  bool ended = false;
  int status = 0;
  Fd input;                  // kept open: the agent ends when it is closed
  std::array<Fd, 2> output;  // standard output and error
  std::array<std::string, 2> unfinished;
};

/// Passes complete lines on; those of the first host's standard output unchanged.
void pass_on(Agent& agent, int stream, bool first, std::string_view bytes) {
  std::FILE* const to = stream == 0 ? stdout : stderr;
  std::string& line = agent.unfinished[static_cast<std::size_t>(stream)];
  const auto write = [&](std::string_view text) {
    if (!first) std::fprintf(to, "[%s] ", agent.host.c_str());
    std::fwrite(text.data(), 1, text.size(), to);
  };
  if (first) {
    write(bytes);
  } else {
    for (const char c : bytes) {
      line += c;
      if (c != '\n' && line.size() < kMostLine) continue;
      if (c != '\n') line += '\n';
      write(line);
      line.clear();
    }
  }
  std::fflush(to);
}

void finish_line(Agent& agent, int stream, bool first) {
  const std::string rest = agent.unfinished[static_cast<std::size_t>(stream)];
  if (!rest.empty()) pass_on(agent, stream, first, "\n");
}

class Agents {
 public:
  explicit Agents(const RemoteOptions& options)
      : options_(options), secret_(options.secret ? *options.secret : random_secret()) {
    HeadOptions head;
    head.address = master_address(options);
    head.port = options.master_port;
    head.secret = secret_;
    head.world_size = num_slots(options.pool);
    head.join_timeout_s = options.join_timeout_s;
    head.notice = options.notice;
    head.table = options.table;
    address_ = head.address;
    head_.emplace(std::move(head));
  }
  ~Agents() { kill_all(); }
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;

  HostsEnd run() {
    const BlockedSignals signals;
    start_all(signals);
    head_->start();
    while (any_alive()) {
      pause_if_asked();
      if (const int signal = signals.wait(0.0); signal != 0 && signal != SIGCHLD) on_signal(signal);
      read_outputs();
      reap();
      end_the_rest();
    }
    read_outputs();
    if (options_.by_hand && first_bad_ == nullptr) head_->wait_until_left();
    note_lost();
    return {exit_code(), lost_, signals_ > 0};
  }

 private:
  void start_all(const BlockedSignals& signals) {
    const std::string folder = std::filesystem::current_path().string();
    const std::vector<std::string> environment = passed_environment();
    int first = 0;
    const std::size_t started = options_.by_hand ? 1 : options_.pool.size();
    for (std::size_t i = 0; i < started; ++i) {
      const HostSlots& host = options_.pool[i];
      AgentJob job{{}, options_.words};
      job.part.host = static_cast<int>(i);
      job.part.hosts = static_cast<int>(options_.pool.size());
      job.part.first_rank = first;
      job.part.local_ranks = static_cast<int>(host.slots.size());
      job.part.world_size = num_slots(options_.pool);
      job.part.name = host.name;
      job.part.master = address_;
      job.part.port = head_->port();
      job.part.secret = secret_;
      job.part.generation = options_.generation;
      first += job.part.local_ranks;
      // ssh is not used to reach this host itself.
      std::vector<std::string> words = {"env"};
      words.insert(words.end(), environment.begin(), environment.end());
      words.insert(words.end(), {options_.program, "agent"});
      if (!options_.by_hand && !is_this_host(host.name))
        words = ssh_command(options_, host.name, folder, environment);
      start(words, agent_job_text(job), host.name, signals);
    }
  }

  void start(const std::vector<std::string>& words,
             const std::string& job,
             const std::string& host,
             const BlockedSignals& signals) {
    auto [in_read, in_write] = make_pipe();
    auto [out_read, out_write] = make_pipe();
    auto [err_read, err_write] = make_pipe();
    std::vector<char*> argv;
    for (const std::string& word : words)
      argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const pid_t self = getpid();
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      // Ctrl-C reaches this process's group; this process passes it on to the agents itself.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != self) _exit(kExitTerminated);
      dup2(in_read.get(), STDIN_FILENO);
      dup2(out_write.get(), STDOUT_FILENO);
      dup2(err_write.get(), STDERR_FILENO);
      signals.let_through();
      execvp(argv[0], argv.data());
      std::fprintf(stderr, "cannot run %s: %s\n", argv[0], std::strerror(errno));
      _exit(tessera::exit_code(Error::Kind::Environment));
    }
    TESSERA_REQUIRE(
        child > 0,
        Environment,
        fmt::format("cannot start an agent for {}: fork: {}", host, std::strerror(errno)),
        "raise the limit of processes (ulimit -u)");
    Agent agent;
    agent.host = host;
    agent.pid = child;
    agent.input = std::move(in_write);
    agent.output = {std::move(out_read), std::move(err_read)};
    for (const Fd& output : agent.output)
      fcntl(output.get(), F_SETFL, O_NONBLOCK);
    // The job fits into the buffer of a pipe, so that a hanging host does not delay the others.
    static_cast<void>(!write(agent.input.get(), job.data(), job.size()));
    agents_.push_back(std::move(agent));
  }

  void on_signal(int signal) {
    const double now = now_s();
    if (now < signalled_at_ + kSameSignalS) return;
    signalled_at_ = now;
    // Agents that have not met prepare, and listen to nobody; there is nothing to save.
    if (++signals_ > 2 || !head_->ready()) {
      stopped_by_ = signal;
      return kill_all();
    }
    head_->stop_hosts(signal);
  }

  void read_outputs() {
    std::vector<pollfd> waited;
    for (const Agent& agent : agents_) {
      for (const Fd& output : agent.output)
        waited.push_back({output.get(), POLLIN, 0});
    }
    poll(waited.data(), waited.size(), kTickMs);
    std::array<char, 65536> part;
    for (std::size_t i = 0; i < waited.size(); ++i) {
      Agent& agent = agents_[i / 2];
      Fd& output = agent.output[i % 2];
      const int stream = static_cast<int>(i % 2);
      if (output.get() < 0 || waited[i].revents == 0) continue;
      const ssize_t got = read(output.get(), part.data(), part.size());
      if (got > 0) {
        pass_on(agent, stream, i < 2, {part.data(), static_cast<std::size_t>(got)});
      } else if (got == 0) {
        finish_line(agent, stream, i < 2);
        output = Fd();
      }
    }
  }

  void reap() {
    for (Agent& agent : agents_) {
      if (agent.ended || waitpid(agent.pid, &agent.status, WNOHANG) != agent.pid) continue;
      agent.ended = true;
      agent.input = Fd();
      const bool good = WIFEXITED(agent.status) && is_orderly(WEXITSTATUS(agent.status));
      if (good || first_bad_ != nullptr) continue;
      first_bad_ = &agent;
      bad_at_ = now_s();
      say_why(agent);
      // Once the hosts have met, the head notices the loss by itself and tells the others. Before,
      // they get the time to tell their own problems.
      if (!head_->ready()) bad_at_ -= kAgentGraceS - kOwnProblemsS;
    }
  }

  void say_why(const Agent& agent) const {
    if (WIFSIGNALED(agent.status)) {
      options_.notice(fmt::format(
          "the agent of host {} was ended by {}", agent.host, signal_text(WTERMSIG(agent.status))));
    } else if (WEXITSTATUS(agent.status) == kSshFailed) {
      options_.notice(fmt::format(
          "ssh cannot reach host {}: type `ssh {} hostname` to see why", agent.host, agent.host));
    } else if (WEXITSTATUS(agent.status) == kNotFound) {
      options_.notice(fmt::format("host {} has no program {}", agent.host, options_.program));
    }
  }

  void pause_if_asked() {
    if (!options_.pause || paused_ || signals_ > 0 || first_bad_ != nullptr || !head_->ready())
      return;
    if (!options_.pause()) return;
    paused_ = true;
    head_->stop_hosts(SIGTERM);
  }

  /// Ends agents that remain after one has failed: an agent that never joined does not learn of it,
  /// and one on a host that was lost cannot.
  void end_the_rest() {
    if (first_bad_ == nullptr || killed_) return;
    if (now_s() < bad_at_ + kAgentGraceS && !only_lost_remain()) return;
    note_lost();
    kill_all();
  }

  [[nodiscard]] bool only_lost_remain() const {
    if (!head_->ready()) return false;
    const std::vector<int> lost = head_->lost_hosts();
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      const bool is_lost = std::find(lost.begin(), lost.end(), static_cast<int>(i)) != lost.end();
      if (!agents_[i].ended && !is_lost) return false;
    }
    return true;
  }

  /// Notes which hosts were lost, before this process itself ends any.
  void note_lost() {
    if (std::exchange(noted_, true)) return;
    const std::vector<int> lost = head_->lost_hosts();
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      const Agent& agent = agents_[i];
      const bool by_head = std::find(lost.begin(), lost.end(), static_cast<int>(i)) != lost.end();
      if (by_head || (agent.ended ? never_ran(agent) : did_not_arrive()))
        lost_.push_back(agent.host);
    }
  }

  /// Whether an agent that is still there has missed the meeting, which its peers ended for that.
  [[nodiscard]] bool did_not_arrive() const {
    return !head_->ready() && first_bad_ != nullptr && WIFEXITED(first_bad_->status) &&
           WEXITSTATUS(first_bad_->status) == tessera::exit_code(Error::Kind::Comm);
  }

  static bool never_ran(const Agent& agent) {
    return !WIFEXITED(agent.status) || WEXITSTATUS(agent.status) == kSshFailed ||
           WEXITSTATUS(agent.status) == kNotFound;
  }

  void kill_all() noexcept {
    killed_ = true;
    for (Agent& agent : agents_) {
      agent.input = Fd();  // ends an agent whose connection does not pass signals on
      if (!agent.ended) kill(-agent.pid, SIGKILL);
    }
    for (Agent& agent : agents_) {
      if (!std::exchange(agent.ended, true)) waitpid(agent.pid, &agent.status, 0);
    }
  }

  [[nodiscard]] bool any_alive() const {
    return std::any_of(agents_.begin(), agents_.end(), [](const Agent& agent) {
      return !agent.ended || agent.output[0].get() >= 0 || agent.output[1].get() >= 0;
    });
  }

  [[nodiscard]] int exit_code() const {
    const auto code_of = [](const Agent& agent) {
      if (!WIFEXITED(agent.status)) return tessera::exit_code(Error::Kind::Comm);
      constexpr int kOwn = 126;  // exit codes from here on come from a shell, ssh or a signal
      const int code = WEXITSTATUS(agent.status);
      const bool stopped = code == kExitInterrupted || code == kExitTerminated;
      return code >= kOwn && !stopped ? tessera::exit_code(Error::Kind::Environment) : code;
    };
    if (stopped_by_ != 0) return unsaved_exit_code(stopped_by_);
    const int first = code_of(agents_.front());
    return first != kExitOk || first_bad_ == nullptr ? first : code_of(*first_bad_);
  }

  const RemoteOptions& options_;
  const Secret secret_;
  std::string address_;
  std::optional<Head> head_;
  std::vector<Agent> agents_;
  const Agent* first_bad_ = nullptr;
  double bad_at_ = 0.0, signalled_at_ = 0.0;
  int signals_ = 0, stopped_by_ = 0;
  bool killed_ = false, paused_ = false, noted_ = false;
  std::vector<std::string> lost_;
};

/// ssh and its options, up to the name of the host.
std::vector<std::string> ssh_words(const RemoteOptions& options) {
  std::vector<std::string> words = {
      "ssh", "-o", "PasswordAuthentication=no", "-o", "BatchMode=yes"};
  if (options.ssh_port) {
    words.emplace_back("-p");
    words.push_back(std::to_string(*options.ssh_port));
  }
  if (options.launcher_args.starts_with('-')) {
    for (const std::string& word : text::split(options.launcher_args, ' ')) {
      if (!word.empty()) words.push_back(word);
    }
  }
  return words;
}

}  // namespace

int run_on_hosts(const RemoteOptions& options) {
  return run_job_on_hosts(options).code;
}

HostsEnd run_job_on_hosts(const RemoteOptions& options) {
  allow_descriptors(6 * options.pool.size());
  return Agents(options).run();
}

std::vector<std::string> ssh_probe(const RemoteOptions& options, const std::string& host) {
  std::vector<std::string> words = ssh_words(options);
  words.insert(words.end(), {"-o", "ConnectTimeout=5", host, quoted(options.program) + " version"});
  return words;
}

std::vector<std::string> ssh_command(const RemoteOptions& options,
                                     const std::string& host,
                                     const std::string& folder,
                                     const std::vector<std::string>& environment) {
  std::vector<std::string> words = ssh_words(options);
  std::string command = fmt::format("cd {} && ", quoted(folder));
  if (!options.launcher_args.empty() && !options.launcher_args.starts_with('-'))
    command += options.launcher_args + " && ";
  words.push_back(host);
  command += "exec env";
  for (const std::string& assignment : environment)
    command += " " + quoted(assignment);
  words.push_back(fmt::format("{} {} agent", command, quoted(options.program)));
  return words;
}

std::vector<std::string> passed_environment() {
  constexpr std::array<std::string_view, 10> kPrefixes = {"NCCL",
                                                          "GLOO",
                                                          "PYTHON",
                                                          "MV2",
                                                          "UCX",
                                                          "MLFLOW",
                                                          "OMP",
                                                          "MKL",
                                                          "TESSERA_",
                                                          "LD_LIBRARY_PATH="};
  std::vector<std::string> passed;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view assignment = *entry;
    const bool wanted =
        std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](std::string_view prefix) {
          return assignment.starts_with(prefix);
        });
    if (wanted) passed.emplace_back(assignment);
  }
  const char* const named = std::getenv("DS_ENV_FILE");
  const std::string name = named != nullptr && *named != '\0' ? named : ".deepspeed_env";
  const char* const home = std::getenv("HOME");
  std::vector<std::filesystem::path> files = {name};
  if (home != nullptr) files.insert(files.begin(), std::filesystem::path(home) / name);
  for (const std::filesystem::path& path : files) {
    std::error_code unknown;
    if (!std::filesystem::is_regular_file(path, unknown)) continue;
    std::size_t number = 0;
    for (const std::string& raw : text::split(files::read(path), '\n')) {
      ++number;
      const std::string line(text::trim(raw));
      if (line.empty() || line.starts_with('#')) continue;
      const std::size_t equals = line.find('=');
      const bool named_well =
          equals != std::string::npos && equals > 0 &&
          line.find_first_not_of(
              "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == equals;
      TESSERA_REQUIRE(named_well,
                      Config,
                      fmt::format("{}:{}: expected NAME=VALUE", path.string(), number),
                      "write one variable a line");
      passed.push_back(line);
    }
  }
  return passed;
}

std::string agent_job_text(const AgentJob& job) {
  const HostPart& part = job.part;
  std::string text = fmt::format("tessera-agent 1\n{}\n{} {} {} {} {} {} {}\n{}\n{}\n{}\n",
                                 to_hex(part.secret),
                                 part.host,
                                 part.hosts,
                                 part.first_rank,
                                 part.local_ranks,
                                 part.world_size,
                                 part.port,
                                 part.generation,
                                 part.name,
                                 part.master,
                                 job.words.size());
  for (const std::string& word : job.words)
    text += fmt::format("{}\n{}\n", word.size(), word);
  return text + "end\n";
}

AgentJob parse_agent_job(const std::string& text) {
  AgentJob job;
  HostPart& part = job.part;
  std::string_view rest = text;
  const auto refuse = [] {
    throw Error(Error::Kind::Config,
                "standard input does not say what this agent has to do",
                "agents are started by: tessera train CONFIG --hostfile FILE");
  };
  const auto line = [&] {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) refuse();
    const std::string found(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    return found;
  };
  if (line() != "tessera-agent 1") refuse();
  const std::optional<Secret> secret = secret_from_hex(line());
  if (!secret) refuse();
  part.secret = *secret;
  const std::string numbers = line();
  if (std::sscanf(numbers.c_str(),
                  "%d %d %d %d %d %d %d",
                  &part.host,
                  &part.hosts,
                  &part.first_rank,
                  &part.local_ranks,
                  &part.world_size,
                  &part.port,
                  &part.generation) != 7)
    refuse();
  part.name = line();
  part.master = line();
  const auto count = std::strtoul(line().c_str(), nullptr, 10);
  for (unsigned long i = 0; i < count; ++i) {
    const auto bytes = std::strtoul(line().c_str(), nullptr, 10);
    if (bytes >= rest.size() || rest[bytes] != '\n') refuse();
    job.words.emplace_back(rest.substr(0, bytes));
    rest.remove_prefix(bytes + 1);
  }
  const bool whole = line() == "end" && part.host >= 0 && part.host < part.hosts &&
                     part.generation >= 0 && part.first_rank >= 0 && part.local_ranks >= 1 &&
                     part.local_ranks <= part.world_size &&
                     part.first_rank <= part.world_size - part.local_ranks;
  if (!whole) refuse();
  return job;
}

}  // namespace tessera::launch
