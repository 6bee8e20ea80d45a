// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/rank_end.h"

#include <array>
#include <csignal>
#include <cstring>

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tessera/base/text.h"

namespace tessera::launch {
namespace {

constexpr std::array kKinds = {Error::Kind::Config,
                               Error::Kind::Data,
                               Error::Kind::Format,
                               Error::Kind::Memory,
                               Error::Kind::Comm,
                               Error::Kind::Numeric,
                               Error::Kind::Environment};

std::string at_step(std::int64_t step) {
  return step < 0 ? "before its first step" : fmt::format("at step {}", step);
}

std::string lost_text(int rank) {
  return fmt::format("rank {} was lost", rank);
}

/// The kernel sends SIGKILL at a hard limit of processor time, which ranks inherit.
std::string cause_of_kill() {
  const std::string usual = "sent by a user or another program";
  rlimit time{};
  if (getrlimit(RLIMIT_CPU, &time) != 0 || time.rlim_max == RLIM_INFINITY) return usual;
  return fmt::format(
      "{}, or by the limit of {} s of processor time (ulimit -t)", usual, time.rlim_max);
}

std::string cause_of(int signal) {
  switch (signal) {
    case SIGKILL:
      return cause_of_kill();
    case SIGSEGV:
    case SIGILL:
    case SIGFPE:
    case SIGABRT:
    case SIGTRAP:
      return "a bug in tessera or in a library that it uses";
    case SIGBUS:
      return "memory that could not be backed: a file cut short while mapped, or no memory left";
    case SIGXCPU:
      return "the limit of processor time (ulimit -t)";
    case SIGXFSZ:
      return "the limit of file size (ulimit -f)";
    case SIGSYS:
      return "a system call that this container forbids";
    default:
      return "sent by a user or another program";
  }
}

Loss out_of_memory_loss(int rank,
                        const std::string& how,
                        std::int64_t step,
                        const Messages& messages) {
  return {fmt::format("{}: {} {}; the kernel killed it because memory ran out",
                      lost_text(rank),
                      how,
                      at_step(step)),
          messages.less_memory,
          Error::Kind::Memory};
}

}  // namespace

std::string signal_text(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal)
                         : fmt::format("signal {} (SIG{})", signal, name);
}

Loss describe_loss(
    int rank, int status, std::int64_t step, bool out_of_memory, const Messages& messages) {
  if (!WIFSIGNALED(status)) {
    const int code = WEXITSTATUS(status);
    return {fmt::format("{}: it left with exit code {} {} without a message",
                        lost_text(rank),
                        code,
                        at_step(step)),
            fmt::format("its log file may say more (logs/rank_{:05}.log)", rank),
            kind_of(code)};
  }
  const int signal = WTERMSIG(status);
  if (signal == SIGKILL && out_of_memory)
    return out_of_memory_loss(rank, signal_text(signal), step, messages);
  return {
      fmt::format(
          "{}: {} {}; {}", lost_text(rank), signal_text(signal), at_step(step), cause_of(signal)),
      messages.again,
      Error::Kind::Comm};
}

Loss describe_silent_loss(int rank,
                          std::int64_t step,
                          bool out_of_memory,
                          const Messages& messages) {
  if (out_of_memory) return out_of_memory_loss(rank, "its process ended", step, messages);
  return {fmt::format("{}: its process ended {} without a message; see the launcher's output for "
                      "its exit status",
                      lost_text(rank),
                      at_step(step)),
          messages.again,
          Error::Kind::Comm};
}

Loss with_host(Loss loss, const std::string& host) {
  if (!host.empty()) loss.text += "; its host is " + host;
  return loss;
}

bool is_orderly(int exit_code) {
  return exit_code == kExitOk || exit_code == kExitIncomplete || exit_code == kExitStopped ||
         exit_code == kExitInterrupted || exit_code == kExitTerminated;
}

int job_exit_code(int code) {
  return is_orderly(code) ? code : exit_code(kind_of(code));
}

Error::Kind kind_of(int code) {
  for (const Error::Kind kind : kKinds) {
    if (exit_code(kind) == code) return kind;
  }
  return Error::Kind::Bug;
}

Error::Kind abort_kind(const ControlPage& control) {
  const std::uint32_t aborted = control.aborted.load(std::memory_order_acquire);
  const auto kind = static_cast<Error::Kind>(aborted - 1);
  return aborted == 0 || kind > Error::Kind::Bug ? Error::Kind::Bug : kind;
}

Error split_remedy(Error::Kind kind, const std::string& text) {
  constexpr std::string_view kFix = "\n  fix: ", kSee = "; see whether ";
  if (const std::size_t at = text.rfind(kFix); at != std::string::npos)
    return {kind, text.substr(0, at), text.substr(at + kFix.size())};
  if (const std::size_t at = text.rfind(kSee); at != std::string::npos)
    return {kind, text.substr(0, at), text.substr(at + 2)};
  return {kind, text, ""};
}

std::string position(const RankLine& line) {
  std::string text = at_step(line.step.load());
  const std::string where(line.where, strnlen(line.where, sizeof(line.where)));
  if (!where.empty()) text += ", last in " + where;
  if (const std::uint32_t peer = line.waiting_for.load(); peer > 0) {
    text += fmt::format(", waiting for rank {}", peer - 1);
  }
  return text;
}

std::string failure_text(ControlPage& control) {
  const std::uint32_t rank = control.abort_rank.load();
  std::string message = control.abort_message();
  const bool names_it = message.starts_with(lost_text(static_cast<int>(rank))) ||
                        message.starts_with(fmt::format("rank {} hangs", rank));
  if (control.ranks > 1 && !names_it) {
    const std::int64_t step = control.line(static_cast<int>(rank)).step.load();
    const std::string when = step < 0 ? "" : fmt::format(" at step {}", step);
    message = fmt::format("rank {} failed{}: {}", rank, when, message);
  }
  return message;
}

std::string remote_line(int rank, const RankLine& line) {
  constexpr std::array<std::string_view, 5> kStates = {
      "starting", "running", "finished earlier", "exited", "also lost"};
  const std::uint32_t state = line.state;
  return fmt::format(
      "rank {}: {}, {}", rank, state < kStates.size() ? kStates[state] : "unknown", position(line));
}

bool is_known(ControlPage& control, int rank, std::size_t hosts) {
  return hosts <= kHostsThatHearAll || control.line(rank).pid != 0;
}

}  // namespace tessera::launch
