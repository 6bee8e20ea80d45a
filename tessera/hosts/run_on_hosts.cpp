// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/run_on_hosts.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
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

#include "tessera/base/bounded_output.h"
#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/hosts/coordinator.h"
#include "tessera/hosts/job_end.h"
#include "tessera/hosts/ssh.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/rank_end.h"
#include "tessera/launch/shared_files.h"
#include "tessera/launch/supervisor.h"

namespace tessera::hosts {
namespace {

constexpr int kTickMs = 50;
constexpr double kSameSignalS = 0.1;
/// Bytes of output after which an unfinished line is passed on.
constexpr std::size_t kMostLine = std::size_t{1} << 16;
/// After the world is broken, agents end their ranks within the grace period of a supervisor.
constexpr double kAgentGraceS = 8.0;
constexpr std::size_t kPipeBytes = std::size_t{1} << 16;
constexpr double kOwnProblemsS = 3.0;
/// Time for agents that the coordinator has refused to end by themselves.
constexpr double kRefusedS = 1.0;
constexpr double kLauncherGraceS = 3.0;

/// Returns the fewest processors that the Slurm allocation has on a host; nothing outside of one.
std::optional<int> slurm_cores() {
  const char* const cores = std::getenv("SLURM_JOB_CPUS_PER_NODE");
  if (cores == nullptr) return std::nullopt;
  return std::ranges::min(expand_counts(cores));
}

std::pair<launch::Fd, launch::Fd> make_pipe() {
  std::array<int, 2> ends{-1, -1};
  TESSERA_REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0,
                  Environment,
                  fmt::format("no pipe for an agent: {}", std::strerror(errno)),
                  "ulimit -n 4096");
  return {launch::Fd(ends[0]), launch::Fd(ends[1])};
}

/// One process of this host: an agent, the ssh that leads to one, or the cluster launcher that
/// leads to all of them.
struct Agent {
  std::string host;  // or the name of the cluster launcher
  pid_t pid = 0;
  bool ended = false;
  bool killed = false;  // by this process
  int status = 0;
  launch::Fd input;                  // kept open: the agent ends when it is closed
  std::array<launch::Fd, 2> output;  // standard output and error
  std::array<std::string, 2> unfinished;
};

/// Standard output and standard error of this process. A job goes on if nobody reads them.
class Outputs {
 public:
  void write(int stream, std::string_view text) {
    std::FILE* const file = stream == 0 ? stdout : stderr;
    BoundedOutput& output = stream == 0 ? output_ : error_;
    const bool bounded = output.is_bounded();
    if (!bounded) std::fwrite(text.data(), 1, text.size(), file);
    std::fflush(file);
    if (bounded) output.write(text);
  }

 private:
  static constexpr double kPatienceS = 10.0;
  BoundedOutput output_{STDOUT_FILENO, kPatienceS}, error_{STDERR_FILENO, kPatienceS};
};

/// Passes complete lines on; those of the first host's standard output unchanged.
void pass_on(Agent& agent, int stream, bool first, std::string_view bytes, Outputs& outputs) {
  if (first) return outputs.write(stream, bytes);
  std::string& line = agent.unfinished[static_cast<std::size_t>(stream)];
  for (const char c : bytes) {
    line += c;
    if (c != '\n' && line.size() < kMostLine) continue;
    if (c != '\n') line += '\n';
    outputs.write(stream, fmt::format("[{}] {}", agent.host, line));
    line.clear();
  }
}

/// Passes complete lines of a cluster launcher on: those of the first host without its label, those
/// of the others with the name of the host instead, and the launcher's own lines unchanged.
void pass_labelled(Agent& agent,
                   int stream,
                   ClusterLauncher launcher,
                   const HostPool& pool,
                   std::string_view bytes,
                   Outputs& outputs) {
  std::string& line = agent.unfinished[static_cast<std::size_t>(stream)];
  for (const char c : bytes) {
    line += c;
    if (c != '\n' && line.size() < kMostLine) continue;
    if (c != '\n') line += '\n';
    const std::optional<LabelledLine> labelled = split_label(launcher, line);
    const bool known = labelled && static_cast<std::size_t>(labelled->task) < pool.size();
    const std::string host = known && labelled->task > 0
                                 ? pool[static_cast<std::size_t>(labelled->task)].name
                                 : std::string();
    outputs.write(stream,
                  fmt::format("{}{}",
                              host.empty() ? "" : fmt::format("[{}] ", host),
                              known ? labelled->text : std::string_view(line)));
    line.clear();
  }
}

AgentSecret secret_of(const RemoteOptions& options) {
  if (options.secret) return {*options.secret, to_hex(*options.secret)};
  return options.cluster_launcher ? agent_secret() : AgentSecret{random_secret(), ""};
}

class Agents {
 public:
  explicit Agents(const RemoteOptions& options) : options_(options), secret_(secret_of(options)) {
    CoordinatorOptions coordinator;
    coordinator.address = master_address(options);
    coordinator.port = options.master_port;
    coordinator.secret = secret_.secret;
    for (const HostSlots& host : options.pool) {
      first_ranks_.push_back(world_size_);
      world_size_ += static_cast<int>(host.slots.size());
    }
    coordinator.world_size = world_size_;
    coordinator.join_timeout_s = options.join_timeout_s;
    coordinator.notice = options.notice;
    coordinator.table = options.table;
    for (const HostSlots& host : options.pool)
      coordinator.hosts.emplace_back(host.name, static_cast<int>(host.slots.size()));
    address_ = coordinator.address;
    for (std::size_t i = 0; options.cluster_launcher && i < options.pool.size(); ++i)
      coordinator.values[agent_job_key(static_cast<int>(i))] = agent_job_text(job_of(i));
    coordinator_.emplace(std::move(coordinator));
  }
  ~Agents() { kill_all(); }
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;

  HostsEnd run() {
    const launch::BlockedSignals signals;
    start_all(signals);
    coordinator_->start();
    while (any_alive()) {
      pause_if_asked();
      if (const int signal = signals.wait(0.0); signal != 0 && signal != SIGCHLD) on_signal(signal);
      read_outputs();
      reap();
      end_the_rest();
    }
    read_outputs();
    if (options_.by_hand && first_bad_ == nullptr) coordinator_->wait_until_left();
    note_lost();
    return end_of_job();
  }

 private:
  [[nodiscard]] HostsEnd end_of_job() {
    HostsEnd end{exit_code(), lost_, signals_ > 0, std::nullopt};
    if (stopped_by_ != 0 || launch::is_orderly(end.code)) return end;
    coordinator_->settle();
    const CoordinatorNews news = coordinator_->news();
    JobEnd job{{},
               coordinator_->ready(),
               news.refusal,
               news.report,
               news.broken,
               options_.program,
               std::filesystem::current_path().string()};
    const std::size_t hosts = options_.cluster_launcher ? options_.pool.size() : agents_.size();
    for (std::size_t i = 0; i < hosts; ++i) {
      HostEnd& host = job.hosts.emplace_back();
      host.host = options_.pool[i].name;
      const auto told = news.told.find(static_cast<int>(i));
      if (told != news.told.end()) host.told = told->second;
      // The agents of a cluster launcher are not processes of this one.
      if (options_.cluster_launcher) continue;
      host.status = agents_[i].status;
      host.killed = agents_[i].killed;
    }
    end.error = error_of_job(job);
    if (!end.error) end.error = error_of_launcher();
    end.error->kind = launch::kind_of(end.code);
    end.code = tessera::exit_code(end.error->kind);
    return end;
  }

  /// The error of a job that nobody has explained.
  [[nodiscard]] HostProblem error_of_launcher() const {
    const Agent& agent = first_bad_ != nullptr ? *first_bad_ : agents_.front();
    return {Error::Kind::Environment,
            fmt::format("{} ended, and not all agents had", agent.host),
            "see its messages above"};
  }

  /// The part of host `i`; its port is 0 before the coordinator listens.
  [[nodiscard]] AgentJob job_of(std::size_t i) const {
    AgentJob job{{}, options_.words};
    job.part.host = static_cast<int>(i);
    job.part.hosts = static_cast<int>(options_.pool.size());
    job.part.first_rank = first_ranks_[i];
    job.part.local_ranks = static_cast<int>(options_.pool[i].slots.size());
    job.part.world_size = world_size_;
    job.part.name = options_.pool[i].name;
    job.part.master = address_;
    job.part.port = coordinator_ ? coordinator_->port() : 0;
    // An agent of a cluster launcher knows the secret before it asks for its job.
    if (!options_.cluster_launcher) job.part.secret = secret_.secret;
    job.part.generation = options_.generation;
    if (options_.copies) job.part.copies = options_.copies(job.part.host);
    return job;
  }

  void start_all(const launch::BlockedSignals& signals) {
    const std::string folder = std::filesystem::current_path().string();
    const std::vector<std::string> passed = passed_environment();
    if (options_.cluster_launcher) return start_with_launcher(folder, passed, signals);
    const std::size_t started = options_.by_hand ? 1 : options_.pool.size();
    for (std::size_t i = 0; i < started; ++i) {
      const HostSlots& host = options_.pool[i];
      std::vector<std::string> environment = passed;
      if (!host.first_ones()) environment.push_back("CUDA_VISIBLE_DEVICES=" + host.list());
      // ssh is not used to reach this host itself.
      std::vector<std::string> words = {"env"};
      words.insert(words.end(), environment.begin(), environment.end());
      words.insert(words.end(), {options_.program, "agent"});
      if (!options_.by_hand && !is_this_host(host.name))
        words = ssh_command(options_, host.name, folder, environment);
      start(words, {}, agent_job_text(job_of(i)), host.name, signals);
    }
  }

  void start_with_launcher(const std::string& folder,
                           const std::vector<std::string>& environment,
                           const launch::BlockedSignals& signals) {
    ClusterStart cluster;
    std::string list;
    for (const HostSlots& host : options_.pool) {
      cluster.hosts.push_back(host.name);
      cluster.cores = std::max(cluster.cores, static_cast<int>(host.slots.size()));
      list += host.name + "\n";
    }
    cluster.cores = slurm_cores().value_or(cluster.cores);
    cluster.folder = folder;
    cluster.ssh_port = options_.ssh_port;
    cluster.host_list = (scratch_.path() / "hosts").string();
    files::write_atomic(cluster.host_list, list);
    const bool options = options_.launcher_args.starts_with('-');
    if (options || options_.launcher_args.empty()) {
      cluster.extra = launcher_words(options_.launcher_args);
      cluster.agent = {"env"};
      cluster.agent.insert(cluster.agent.end(), environment.begin(), environment.end());
      cluster.agent.insert(cluster.agent.end(), {options_.program, "agent"});
    } else {
      cluster.agent = {"bash", "-c", shell_command(options_, environment)};
    }
    ClusterCommand command = cluster_command(*options_.cluster_launcher, cluster);
    command.variables.emplace_back(kAgentVariable,
                                   agent_variable(secret_.text, address_, coordinator_->port()));
    start(command.words, command.variables, "", command.words.front(), signals);
  }

  void start(const std::vector<std::string>& words,
             const std::vector<std::pair<std::string, std::string>>& variables,
             const std::string& job,
             const std::string& host,
             const launch::BlockedSignals& signals) {
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
      for (const auto& [name, value] : variables)
        setenv(name.c_str(), value.c_str(), 1);
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
    for (const launch::Fd& output : agent.output)
      fcntl(output.get(), F_SETFL, O_NONBLOCK);
    // The job fits into the buffer of a pipe, so that a hanging host does not delay the others.
    if (job.size() > kPipeBytes)
      fcntl(agent.input.get(), F_SETPIPE_SZ, static_cast<int>(2 * job.size()));
    static_cast<void>(!write(agent.input.get(), job.data(), job.size()));
    agents_.push_back(std::move(agent));
  }

  void on_signal(int signal) {
    const double now = now_s();
    if (now < signalled_at_ + kSameSignalS) return;
    signalled_at_ = now;
    // Agents that have not met prepare, and listen to nobody; there is nothing to save.
    if (++signals_ > 2 || !coordinator_->ready()) {
      stopped_by_ = signal;
      return kill_all();
    }
    coordinator_->stop_hosts(signal);
  }

  void read_outputs() {
    std::vector<pollfd> waited;
    for (const Agent& agent : agents_) {
      for (const launch::Fd& output : agent.output)
        waited.push_back({output.get(), POLLIN, 0});
    }
    poll(waited.data(), waited.size(), kTickMs);
    std::array<char, 65536> part;
    for (std::size_t i = 0; i < waited.size(); ++i) {
      Agent& agent = agents_[i / 2];
      launch::Fd& output = agent.output[i % 2];
      const int stream = static_cast<int>(i % 2);
      if (output.get() < 0 || waited[i].revents == 0) continue;
      const ssize_t got = read(output.get(), part.data(), part.size());
      const std::string_view bytes(part.data(),
                                   static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      if (got > 0) {
        take(agent, stream, i < 2, bytes);
      } else if (got == 0) {
        finish_line(agent, stream, i < 2);
        output = launch::Fd();
      }
    }
  }

  void take(Agent& agent, int stream, bool first, std::string_view bytes) {
    if (options_.cluster_launcher)
      return pass_labelled(
          agent, stream, *options_.cluster_launcher, options_.pool, bytes, outputs_);
    pass_on(agent, stream, first, bytes, outputs_);
  }
  void finish_line(Agent& agent, int stream, bool first) {
    if (!agent.unfinished[static_cast<std::size_t>(stream)].empty())
      take(agent, stream, first, "\n");
  }

  void reap() {
    for (Agent& agent : agents_) {
      if (agent.ended || waitpid(agent.pid, &agent.status, WNOHANG) != agent.pid) continue;
      agent.ended = true;
      agent.input = launch::Fd();
      const bool good =
          options_.cluster_launcher
              ? coordinator_->exit_codes().size() == options_.pool.size()
              : WIFEXITED(agent.status) && launch::is_orderly(WEXITSTATUS(agent.status));
      if (good || first_bad_ != nullptr) continue;
      first_bad_ = &agent;
      bad_at_ = now_s();
      // Once the hosts have met, the coordinator notices the loss by itself and notifies the
      // others. Before, they get the time to report their own problems.
      if (!coordinator_->ready()) bad_at_ -= kAgentGraceS - kOwnProblemsS;
    }
  }

  void pause_if_asked() {
    if (!options_.pause || paused_ || signals_ > 0 || first_bad_ != nullptr ||
        !coordinator_->ready())
      return;
    if (!options_.pause()) return;
    paused_ = true;
    coordinator_->stop_hosts(SIGTERM);
  }

  /// Ends agents that remain after one has failed: an agent that never joined does not learn of it,
  /// and one on a host that was lost cannot.
  void end_the_rest() {
    if (options_.cluster_launcher && first_bad_ == nullptr && !coordinator_->ready() &&
        agent_failed()) {
      first_bad_ = &agents_.front();
      bad_at_ = now_s() - kAgentGraceS + kOwnProblemsS;
    }
    // Agents that never arrived, such as those behind an ssh that stays silent, do not learn that
    // the coordinator has refused the job.
    if (first_bad_ == nullptr && !refused_ && coordinator_->news().refusal) {
      refused_ = true;
      bad_at_ = now_s() - kAgentGraceS + kRefusedS;
    }
    if ((first_bad_ == nullptr && !refused_) || killed_) return;
    if (now_s() < bad_at_ + kAgentGraceS && !only_lost_remain()) return;
    note_lost();
    kill_all();
  }

  [[nodiscard]] std::set<int> lost_by_coordinator() const {
    const std::vector<int> lost = coordinator_->lost_hosts();
    return {lost.begin(), lost.end()};
  }

  [[nodiscard]] bool only_lost_remain() const {
    if (!coordinator_->ready()) return false;
    const std::set<int> lost = lost_by_coordinator();
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      const bool is_lost = lost.contains(static_cast<int>(i));
      if (!agents_[i].ended && !is_lost) return false;
    }
    return true;
  }

  /// Notes which hosts were lost, before this process itself ends any.
  void note_lost() {
    if (std::exchange(noted_, true)) return;
    const std::set<int> lost = lost_by_coordinator();
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      const Agent& agent = agents_[i];
      const bool by_head = lost.contains(static_cast<int>(i));
      if (by_head || (agent.ended ? never_ran(agent) : did_not_arrive()))
        lost_.push_back(agent.host);
    }
  }

  /// Returns true if an agent that still runs did not join in time, so that the agents that had
  /// joined ended the job.
  [[nodiscard]] bool did_not_arrive() const {
    if (coordinator_->ready()) return false;
    return refused_ || (first_bad_ != nullptr && WIFEXITED(first_bad_->status) &&
                        WEXITSTATUS(first_bad_->status) == tessera::exit_code(Error::Kind::Comm));
  }

  static bool never_ran(const Agent& agent) {
    return !WIFEXITED(agent.status) || WEXITSTATUS(agent.status) == kSshFailed ||
           WEXITSTATUS(agent.status) == kNotFound || WEXITSTATUS(agent.status) == kNoFolder;
  }

  void kill_all() noexcept {
    killed_ = true;
    // A cluster launcher ends its tasks on other hosts when it is asked to, not when it is killed.
    for (const double until = now_s() + kLauncherGraceS;
         options_.cluster_launcher && now_s() < until;) {
      if (agents_.empty() || agents_.front().ended) break;
      Agent& agent = agents_.front();
      kill(agent.pid, SIGTERM);
      agent.ended = waitpid(agent.pid, &agent.status, WNOHANG) == agent.pid;
      poll(nullptr, 0, kTickMs);
    }
    for (Agent& agent : agents_) {
      agent.input = launch::Fd();  // ends an agent whose connection does not pass signals on
      if (agent.ended) continue;
      agent.killed = true;
      kill(-agent.pid, SIGKILL);
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
      constexpr int kOwn = kNoFolder;  // from here on they come from a shell, ssh or a signal
      const int code = WEXITSTATUS(agent.status);
      const bool stopped = code == kExitInterrupted || code == kExitTerminated;
      return code >= kOwn && !stopped ? tessera::exit_code(Error::Kind::Environment) : code;
    };
    if (stopped_by_ != 0) return launch::unsaved_exit_code(stopped_by_);
    if (options_.cluster_launcher) return exit_code_of_agents();
    const int first = agents_.front().killed ? kExitOk : code_of(agents_.front());
    if (first != kExitOk) return first;
    if (first_bad_ != nullptr) return code_of(*first_bad_);
    return refused_ ? tessera::exit_code(coordinator_->news().refusal->kind) : kExitOk;
  }

  [[nodiscard]] bool agent_failed() const {
    const std::map<int, int> codes = coordinator_->exit_codes();
    return std::ranges::any_of(codes, [](const auto& one) { return one.second != kExitOk; });
  }
  /// The agents have reported their codes; a cluster launcher that ended without all of them lost a
  /// host, or could not start it.
  [[nodiscard]] int exit_code_of_agents() const {
    const std::map<int, int> codes = coordinator_->exit_codes();
    for (const auto& [host, code] : codes) {
      if (code != kExitOk) return code;
    }
    if (codes.size() == options_.pool.size()) return kExitOk;
    return tessera::exit_code(coordinator_->ready() ? Error::Kind::Comm : Error::Kind::Environment);
  }

  const RemoteOptions& options_;
  const AgentSecret secret_;
  const files::TempDir scratch_;
  std::string address_;
  std::vector<int> first_ranks_;  // by host
  int world_size_ = 0;
  std::optional<Coordinator> coordinator_;
  std::vector<Agent> agents_;
  Outputs outputs_;
  const Agent* first_bad_ = nullptr;
  double bad_at_ = 0.0, signalled_at_ = 0.0;
  int signals_ = 0, stopped_by_ = 0;
  bool killed_ = false, paused_ = false, noted_ = false, refused_ = false;
  std::vector<std::string> lost_;
};

}  // namespace

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
  const launch::Fd fd(socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
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

HostsEnd run_job_on_hosts(const RemoteOptions& options) {
  launch::allow_descriptors(6 * options.pool.size());
  return Agents(options).run();
}

}  // namespace tessera::hosts
