// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/rl/reward_command.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"

namespace tessera::tasks {
namespace {

/// A longer line is not a valid answer.
constexpr std::size_t kLongestLine = std::size_t{1} << 20;

/// A failure of the program; a restart may help.
struct ChildFailed {
  std::string what;
};

}  // namespace

/// The running program.
class RewardCommand::Child {
 public:
  explicit Child(const CommandRewardOptions& options) : options_(options) {
    std::array<int, 2> in{}, out{};
    // A socket, so that writing to a program that has ended is an error instead of a signal.
    TESSERA_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) == 0 &&
                        ::pipe2(out.data(), O_CLOEXEC) == 0,
                    Environment,
                    fmt::format("no pipe to the reward's program: {}", std::strerror(errno)),
                    "raise the limit on open files (ulimit -n)");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::vector<char*> words;
    words.reserve(options.command.size() + 1);
    for (const std::string& word : options.command)
      words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    const int error =
        ::posix_spawnp(&pid_, words.front(), &actions, &attributes, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    ::close(in[0]);
    ::close(out[1]);
    to_ = in[1];
    from_ = out[0];
    if (error != 0) {
      ::close(to_);
      ::close(from_);
      throw Error(Error::Kind::Environment,
                  fmt::format("the reward's program {} cannot be started: {}",
                              options.command.front(),
                              std::strerror(error)),
                  "name a program that can be run in \"command\", and its words as further items");
    }
    for (const int end : {to_, from_})
      ::fcntl(end, F_SETFL, ::fcntl(end, F_GETFL) | O_NONBLOCK);
  }
  ~Child() {
    ::close(to_);
    ::close(from_);
    if (pid_ == 0) return;  // it has ended, and its process number may be reused
    ::kill(pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Writes `lines` and passes on received lines until take() returns that it has enough.
  template <class Take>
  void exchange(const std::string& lines, Take take, const std::function<void()>& poll) {
    std::size_t written = 0;
    double deadline = now_s() + options_.timeout;
    while (true) {
      std::array<pollfd, 2> ends{{{from_, POLLIN, 0}, {to_, POLLOUT, 0}}};
      const nfds_t count = written < lines.size() ? 2 : 1;
      const double left = deadline - now_s();
      if (left <= 0)
        throw ChildFailed{fmt::format("gave no answer for {}", text::duration(options_.timeout))};
      if (poll) poll();
      const int ready = ::poll(ends.data(), count, static_cast<int>(std::min(left, 1.0) * 1e3) + 1);
      if (ready < 0 && errno != EINTR) throw ChildFailed{std::strerror(errno)};
      if (ready <= 0) continue;
      if (count == 2 && ends[1].revents != 0) {
        const ssize_t sent =
            ::send(to_, lines.data() + written, lines.size() - written, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) throw ChildFailed{ended()};
        if (sent > 0) written += static_cast<std::size_t>(sent);
      }
      if (ends[0].revents == 0) continue;
      std::array<char, 65536> buffer{};
      const ssize_t got = ::read(from_, buffer.data(), buffer.size());
      if (got == 0) throw ChildFailed{ended()};
      if (got < 0) continue;
      pending_.append(buffer.data(), static_cast<std::size_t>(got));
      deadline = now_s() + options_.timeout;
      for (std::size_t end = pending_.find('\n'); end != std::string::npos;
           end = pending_.find('\n')) {
        const std::string line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        if (!text::trim(line).empty() && take(line)) return;
      }
      if (pending_.size() > kLongestLine) throw ChildFailed{"answered with an endless line"};
    }
  }

 private:
  std::string ended() {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return "closed its output";
    pid_ = 0;
    return WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                               : fmt::format("ended with code {}", WEXITSTATUS(status));
  }

  const CommandRewardOptions& options_;
  pid_t pid_ = 0;
  int to_ = -1, from_ = -1;
  std::string pending_;
};

RewardCommand::RewardCommand(CommandRewardOptions options) : options_(std::move(options)) {}
RewardCommand::~RewardCommand() = default;

std::vector<double> RewardCommand::of(std::span<const Answer> answers,
                                      const std::function<void()>& poll) {
  std::vector<std::optional<double>> given(answers.size());
  std::size_t open = answers.size();
  const auto take = [&](const std::string& line) {
    json::Value value;
    try {
      value = json::parse_strict(line, "the reward's program");
    } catch (const Error&) {
      value = {};
    }
    const json::Value* const id = value.is_object() ? value.find("id") : nullptr;
    const json::Value* const reward = value.is_object() ? value.find("reward") : nullptr;
    const std::optional<std::int64_t> at =
        id != nullptr && id->is_number() ? id->as_integer() : std::nullopt;
    const bool known = at && *at >= 0 && *at < std::ssize(given);
    TESSERA_REQUIRE(
        known && reward != nullptr && (reward->is_number() || reward->is_null()) &&
            !given[static_cast<std::size_t>(*at)],
        Data,
        fmt::format("the reward's program {} answered {}{}",
                    options_.command.front(),
                    line.substr(0, 200),
                    known ? fmt::format(" of the completion of {}",
                                        answers[static_cast<std::size_t>(*at)].place)
                          : std::string()),
        "let it answer each line once, with {\"id\": ..., \"reward\": a number or null}");
    given[static_cast<std::size_t>(*at)] =
        reward->is_null() ? std::numeric_limits<double>::quiet_NaN() : reward->as_double();
    return --open == 0;
  };
  for (std::int64_t failures = 0; open > 0;) {
    std::string lines;
    std::string_view first;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      if (given[i]) continue;
      const Answer& one = answers[i];
      if (first.empty()) first = one.place;
      lines += json::Value::object(
                   {{"id", json::Value::integer(static_cast<std::int64_t>(i))},
                    {"prompt", json::Value::string(text::replace_invalid_utf8(one.prompt))},
                    {"completion", json::Value::string(text::replace_invalid_utf8(one.text))},
                    {"ended", json::Value::boolean(one.ended)},
                    {"record", one.record}})
                   .dump() +
               "\n";
    }
    try {
      if (child_ == nullptr) child_ = std::make_unique<Child>(options_);
      child_->exchange(lines, take, poll);
    } catch (const ChildFailed& failure) {
      child_.reset();
      const std::string what = fmt::format("the reward's program {} {} at the completion of {}",
                                           options_.command.front(),
                                           failure.what,
                                           first);
      TESSERA_REQUIRE(++failures <= options_.restarts,
                      Environment,
                      fmt::format("{}, {} times in a row", what, failures),
                      "run it by hand on a line of JSON, or raise the reward's \"timeout\" or "
                      "\"restarts\"");
      log::warn(what + "; it is started again");
    }
  }
  std::vector<double> out;
  out.reserve(given.size());
  for (const std::optional<double>& one : given)
    out.push_back(*one);
  return out;
}

}  // namespace tessera::tasks
