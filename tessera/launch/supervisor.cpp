// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/supervisor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <thread>

#include <fmt/core.h>
#include <sys/wait.h>

#include "tessera/base/clock.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/machine.h"

namespace tessera::launch {
namespace {

// Deaths and requests arrive as signals at once; the timer only finds a world that a rank broke
// without ending.
constexpr double kTickS = 0.25;
// timeout(1) sends its signal to the process and to its group: a second one within this time is the
// same request.
constexpr double kSameRequestS = 0.1;
// A process in an uninterruptible system call survives SIGKILL: do not wait for it forever.
constexpr double kReapS = 10.0;

}  // namespace

BlockedSignals::BlockedSignals() : waited_(stop_signals()) {
  sigaddset(&waited_, SIGCHLD);
  sigprocmask(SIG_BLOCK, &waited_, &before_);
  // The parent process may ignore SIGCHLD; the kernel would then reap the ranks before their status
  // is known.
  child_before_ = std::signal(SIGCHLD, SIG_DFL);
}

BlockedSignals::~BlockedSignals() {
  while (wait(0.0) != 0) {
  }
  std::signal(SIGCHLD, child_before_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int BlockedSignals::wait(double seconds) const {
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(seconds);
  limit.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  const int signal = sigtimedwait(&waited_, nullptr, &limit);
  return signal > 0 ? signal : 0;
}

void BlockedSignals::let_through() const noexcept {
  sigprocmask(SIG_SETMASK, &before_, nullptr);
  sigprocmask(SIG_UNBLOCK, &waited_, nullptr);
}

Supervisor::Supervisor(const Options& options, const BlockedSignals& signals, ControlPage& control)
    : options_(options),
      signals_(signals),
      control_(control),
      first_rank_(options.part ? options.part->first_rank : 0),
      hang_watch_(control, first_rank_),
      oom_kills_before_(oom_kills()) {}

Supervisor::~Supervisor() {
  kill_rest();
  while (any_alive() && now_s() < give_up_at_) {
    reap();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Supervisor::add(pid_t child) {
  control_.line(rank_of(children_.size())).pid = static_cast<std::uint32_t>(child);
  children_.push_back({child});
}

int Supervisor::watch() {
  while (any_alive()) {
    double wait = kTickS;
    if (broken_at_ >= 0.0)
      wait = std::clamp(broken_at_ + options_.grace_s - now_s(), 0.001, kTickS);
    if (const int signal = signals_.wait(wait); signal != 0) on_signal(signal);
    reap();
    check_deadline();
    check_progress();
    if (killing_ && now_s() > give_up_at_) break;
  }
  const int code = exit_code();
  if (code != kExitOk) report(code);
  return code;
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGCHLD || killing_) return;
  const double now = now_s();
  if (stop_asked_at_ >= 0.0 && now - stop_asked_at_ < kSameRequestS) return;
  if (options_.stop_asked != nullptr) *options_.stop_asked = true;
  if (stop_asked_at_ >= 0.0 || !any_began()) {
    stop_at_once(signal);
    return;
  }
  stop_asked_at_ = now;
  control_.stop_requested = static_cast<std::uint32_t>(signal);
  control_.ring_all();
  if (options_.notice) {
    options_.notice(fmt::format("{}: {}", signal_text(signal), options_.messages.stopping));
  }
}

void Supervisor::stop_at_once(int signal) {
  stopped_at_once_ = signal;
  kill_rest();
}

void Supervisor::reap() {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    if (child.ended || waitpid(child.pid, &child.status, WNOHANG) != child.pid) continue;
    child.ended = true;
    on_end(static_cast<int>(i));
  }
}

void Supervisor::on_end(int local_rank) {
  const int rank = rank_of(static_cast<std::size_t>(local_rank));
  const Child& child = children_[static_cast<std::size_t>(local_rank)];
  RankLine& line = control_.line(rank);
  const bool orderly = WIFEXITED(child.status) && is_orderly(WEXITSTATUS(child.status));
  if (WIFSIGNALED(child.status)) line.state = static_cast<std::uint32_t>(RankState::Lost);
  if (orderly || child.killed || killing_) return;
  // The reader of the output has exited, as in `... | head`: this is not a failure.
  if (WIFSIGNALED(child.status) && WTERMSIG(child.status) == SIGPIPE) {
    output_closed_ = true;
    kill_rest();
    return;
  }
  const bool of_memory = oom_kills() > oom_kills_before_;
  break_world(rank,
              describe_loss(rank, child.status, line.step.load(), of_memory, options_.messages));
}

// The first failure counts: if a rank broke the world itself, its message is kept.
void Supervisor::break_world(int rank, const Loss& loss) {
  if (broken_at_ >= 0.0) return;
  broken_at_ = now_s();
  const Loss named = with_host(loss, options_.part ? options_.part->name : "");
  if (control_.abort(rank, static_cast<std::uint32_t>(named.kind), named.text)) {
    loss_ = named;
    failed_rank_ = rank;
  } else {
    failed_rank_ = static_cast<int>(control_.abort_rank.load());
  }
}

void Supervisor::check_deadline() {
  if (broken_at_ < 0.0 && control_.aborted.load(std::memory_order_acquire) != 0) {
    broken_at_ = now_s();
    failed_rank_ = static_cast<int>(control_.abort_rank.load());
  }
  if (broken_at_ >= 0.0 && !killing_ && now_s() >= broken_at_ + options_.grace_s) kill_rest();
}

void Supervisor::check_progress() {
  if (broken_at_ >= 0.0 || killing_) return;
  std::vector<pid_t> processes;
  for (const Child& child : children_)
    processes.push_back(child.ended ? 0 : child.pid);
  const std::optional<HangingRank> found = hang_watch_.look(processes);
  if (!found) return;
  if (found->stopped) {
    break_world(found->rank, {found->text, options_.messages.again, Error::Kind::Comm});
  } else if (options_.notice) {
    options_.notice(found->text);
  }
}

void Supervisor::kill_rest() noexcept {
  if (!killing_) give_up_at_ = now_s() + kReapS;
  killing_ = true;
  for (Child& child : children_) {
    if (child.ended) continue;
    child.killed = true;
    kill(child.pid, SIGKILL);
  }
}

bool Supervisor::any_alive() const {
  return std::any_of(children_.begin(), children_.end(), [](const Child& c) { return !c.ended; });
}

bool Supervisor::any_began() const {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (control_.line(rank_of(i)).step.load() >= 0) return true;
  }
  return false;
}

int Supervisor::exit_code() const {
  if (output_closed_) return 128 + SIGPIPE;
  if (stopped_at_once_ != 0) return unsaved_exit_code(stopped_at_once_);
  if (loss_ && loss_->kind != Error::Kind::Bug) return tessera::exit_code(loss_->kind);
  if (failed_rank_ >= 0) {
    const Child* const child = child_of(failed_rank_);
    if (child != nullptr && WIFEXITED(child->status) && WEXITSTATUS(child->status) != kExitOk)
      return job_exit_code(WEXITSTATUS(child->status));
    return tessera::exit_code(abort_kind(control_));
  }
  for (const Child& child : children_) {
    if (WIFEXITED(child.status) && WEXITSTATUS(child.status) != kExitOk)
      return job_exit_code(WEXITSTATUS(child.status));
  }
  return kExitOk;
}

std::optional<Error> Supervisor::failure() const {
  if (output_closed_ || failed_rank_ < 0 || stopped_at_once_ != 0 || !reports())
    return std::nullopt;
  if (loss_) return Error(loss_->kind, loss_->text, loss_->remedy);
  const Error found = split_remedy(abort_kind(control_), failure_text(control_));
  const bool needs_fix = found.fix().empty() && found.kind() == Error::Kind::Comm;
  return needs_fix ? Error(found.kind(), found.what(), options_.messages.again) : found;
}

void Supervisor::report(int code) const {
  if (!options_.report || output_closed_ || (failed_rank_ < 0 && stopped_at_once_ == 0)) return;
  if (!reports()) return;
  // The process that started the agents reports how the job ended.
  if (options_.part && options_.part->is_agent && options_.part->host != 0) return;
  const auto hosts = static_cast<std::size_t>(options_.part ? options_.part->hosts : 1);
  std::vector<std::string> lines = {first_entry()};
  for (int rank = 0; rank < static_cast<int>(control_.ranks); ++rank) {
    if (child_of(rank) == nullptr && !is_known(control_, rank, hosts)) continue;
    if (rank != failed_rank_ || stopped_at_once_ != 0) lines.push_back(rank_line(rank));
  }
  options_.report(lines, code);
}

std::string Supervisor::first_entry() const {
  if (stopped_at_once_ != 0) {
    std::string stopped = std::string(kStoppedAtOnce) + signal_text(stopped_at_once_);
    const std::string& unsaved = options_.messages.unsaved;
    if (unsaved.empty()) return stopped;
    return fmt::format(
        "{}: {}", stopped, any_began() ? unsaved : "no step had begun, there was nothing to save");
  }
  if (loss_) return loss_->text + "; " + loss_->remedy;
  return failure_text(control_);
}

bool Supervisor::reports() const {
  const LocalRanks* const part = options_.part.get();
  if (part == nullptr || part->host == 0) return true;
  return stopped_at_once_ == 0 && failed_rank_ == 0;
}

const Supervisor::Child* Supervisor::child_of(int rank) const {
  const int local_rank = rank - first_rank_;
  const bool here = local_rank >= 0 && local_rank < static_cast<int>(children_.size());
  return here ? &children_[static_cast<std::size_t>(local_rank)] : nullptr;
}

std::string Supervisor::rank_line(int rank) const {
  if (child_of(rank) == nullptr) return remote_line(rank, control_.line(rank));
  const Child& child = *child_of(rank);
  std::string state;
  if (!child.ended) {
    state = "does not react to SIGKILL";
  } else if (WIFSIGNALED(child.status) && child.killed) {
    state = stopped_at_once_ != 0
                ? "killed"
                : fmt::format("killed because it did not exit within {} s", options_.grace_s);
  } else if (WIFSIGNALED(child.status)) {
    state = "also lost, " + signal_text(WTERMSIG(child.status));
  } else if (WEXITSTATUS(child.status) == kExitOk) {
    state = "finished earlier";
  } else {
    state = fmt::format("exited with code {}", WEXITSTATUS(child.status));
  }
  return fmt::format("rank {}: {}, {}", rank, state, position(control_.line(rank)));
}

}  // namespace tessera::launch
