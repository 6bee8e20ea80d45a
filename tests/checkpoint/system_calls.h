// SPDX-License-Identifier: Apache-2.0
// Processes that are killed at a system call that changes files.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::checkpoint::test {

/// How much of the call is executed at which a process is killed. Half: a write writes half of its
/// bytes.
enum class Effect { None, Half };

#ifdef __x86_64__
inline constexpr bool kCanHalve = true;
#else
inline constexpr bool kCanHalve = false;  // on other machines the arguments are in other registers
#endif

/// The end of a process.
struct Traced {
  /// Number of calls that change files; with Half, only the writes among them.
  int calls = 0;
  std::set<std::string> kinds;  ///< kinds of these calls
  std::string killed_at;        ///< the kind of the call; empty: it came to its end
  int code = 0;                 ///< its exit code, if it came to its end
  bool forbidden = false;       ///< this machine does not allow tracing: nothing was done
};

/// Runs `work` in a child process and kills it with all of its threads when one of them enters the
/// `n`-th call (from 0) that changes files; before that call has done anything, or after half of
/// it. The caller has one thread and no other child.
class KilledAtCall {
 public:
  KilledAtCall(const KilledAtCall&) = delete;
  KilledAtCall& operator=(const KilledAtCall&) = delete;
  static Traced run(int n, Effect effect, const std::function<void()>& work) {
    KilledAtCall out(n, effect);
    out.start(work);
    if (!out.traced_.forbidden) out.follow();
    return out.traced_;
  }

 private:
  static constexpr int kFailed = 101, kForbidden = 102;

  KilledAtCall(int n, Effect effect) : n_(n), effect_(effect) {}
  ~KilledAtCall() {
    if (child_ < 0) return;  // it has ended
    ::kill(child_, SIGKILL);
    int status = 0;
    while (wait_for(-1, status) > 0) {
    }
  }

  [[noreturn]] static void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
  }

  /// Returns the name of a call that changes files, or nullptr.
  static const char* change_of(const struct __ptrace_syscall_info& call) {
    const auto& args = call.entry.args;
    switch (call.entry.nr) {
      case SYS_write:
      case SYS_pwrite64:
        return "write";
      case SYS_writev:
      case SYS_pwritev:
      case SYS_pwritev2:
        return "writev";
      case SYS_fsync:
      case SYS_fdatasync:
        return "sync";
      case SYS_ftruncate:
      case SYS_truncate:
        return "truncate";
      case SYS_fallocate:
        return "reserve";
      case SYS_openat:
        return (args[2] & (O_CREAT | O_TRUNC)) != 0 ? "create" : nullptr;
      case SYS_renameat:
      case SYS_renameat2:
        return "rename";
      case SYS_linkat:
      case SYS_symlinkat:
        return "link";
      case SYS_unlinkat:
        return "remove";
      case SYS_mkdirat:
        return "make folder";
#ifdef __x86_64__  // newer architectures lack the calls that others replaced
      case SYS_open:
        return (args[1] & (O_CREAT | O_TRUNC)) != 0 ? "create" : nullptr;
      case SYS_creat:
        return "create";
      case SYS_rename:
        return "rename";
      case SYS_link:
      case SYS_symlink:
        return "link";
      case SYS_unlink:
      case SYS_rmdir:
        return "remove";
      case SYS_mkdir:
        return "make folder";
#endif
      default:
        return nullptr;
    }
  }

  void start(const std::function<void()>& work) {
    child_ = ::fork();
    if (child_ < 0) fail("fork");
    if (child_ == 0) {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0)
        ::_exit(errno == EPERM || errno == ENOSYS ? kForbidden : kFailed);
      ::raise(SIGSTOP);
      try {
        work();
      } catch (...) {
        ::_exit(kFailed);
      }
      ::_exit(0);
    }
    int status = 0;
    if (wait_for(child_, status) != child_) fail("wait for the child");
    if (WIFSTOPPED(status)) {
      constexpr long kOptions = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
      if (::ptrace(PTRACE_SETOPTIONS, child_, nullptr, kOptions) != 0) fail("trace the child");
      return;
    }
    child_ = -1;
    traced_.forbidden = WIFEXITED(status) && WEXITSTATUS(status) == kForbidden;
    if (!traced_.forbidden) throw std::runtime_error("the child cannot be traced");
  }

  static pid_t wait_for(pid_t whom, int& status) {
    pid_t found = 0;
    do {
      found = ::waitpid(whom, &status, __WALL);
    } while (found < 0 && errno == EINTR);
    return found;
  }

  /// Lets the threads run from call to call until the process has ended.
  void follow() {
    pid_t thread = child_;
    long signal = 0;
    for (;;) {
      ::ptrace(PTRACE_SYSCALL,
               thread,
               nullptr,
               signal);  // fails for a thread that was killed in the meantime
      int status = 0;
      thread = wait_for(-1, status);
      if (thread < 0) fail("wait for a thread of the child");
      signal = 0;
      if (!WIFSTOPPED(status)) {
        if (thread != child_) continue;
        child_ = -1;
        if (WIFEXITED(status)) traced_.code = WEXITSTATUS(status);
        if (WIFSIGNALED(status) && traced_.killed_at.empty())
          throw std::runtime_error("the child died of a signal of its own");
        return;
      }
      const int reason = WSTOPSIG(status);
      if (reason == (SIGTRAP | 0x80)) {
        at_call(thread);
      } else if (status >> 16 == 0 && reason != SIGSTOP) {  // a new thread begins with that signal
        signal = reason;
      }
    }
  }

  /// A thread is before or after a call.
  void at_call(pid_t thread) {
    if (!traced_.killed_at.empty() && thread != halved_) return;
    struct __ptrace_syscall_info call {};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(call), &call) <= 0) {
      if (errno == ESRCH) return;  // it is being killed
      fail("see a call of the child");
    }
    if (thread == halved_) {
      if (call.op == PTRACE_SYSCALL_INFO_EXIT) ::kill(child_, SIGKILL);
      return;
    }
    if (call.op != PTRACE_SYSCALL_INFO_ENTRY) return;
    const char* kind = change_of(call);
    if (kind == nullptr) return;
    const bool write = call.entry.nr == SYS_write || call.entry.nr == SYS_pwrite64;
    if (effect_ == Effect::Half && !write) return;
    traced_.kinds.insert(kind);
    if (traced_.calls++ != n_) return;
    traced_.killed_at = kind;
    if (effect_ == Effect::Half) {
      halve(thread, call.entry.args[2]);
      halved_ = thread;
    } else {
      ::kill(child_, SIGKILL);  // a call is not executed if the process is killed at its entry
    }
  }

  static void halve([[maybe_unused]] pid_t thread, [[maybe_unused]] std::uint64_t bytes) {
#ifdef __x86_64__
    user_regs_struct registers{};
    if (::ptrace(PTRACE_GETREGS, thread, nullptr, &registers) != 0) fail("read registers");
    registers.rdx = bytes / 2;
    if (::ptrace(PTRACE_SETREGS, thread, nullptr, &registers) != 0) fail("change registers");
#endif
  }

  int n_;
  Effect effect_;
  pid_t child_ = -1;
  pid_t halved_ = -1;  ///< the thread that executes half of its write
  Traced traced_;
};

}  // namespace tessera::checkpoint::test
