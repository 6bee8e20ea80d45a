// SPDX-License-Identifier: Apache-2.0
// The only exception type of the library, and the exit code of the program for each kind of error.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

/// A source position. Replaces std::source_location because clang-tidy 14 cannot parse that of
/// libstdc++ 12.
struct Where {
  const char* file;
  int line;
  static constexpr Where here(const char* f = __builtin_FILE(), int l = __builtin_LINE()) {
    return {f, l};
  }
};

/// An error: what went wrong, where, and how to fix it. The only exception that this library
/// throws.
class Error : public std::runtime_error {
 public:
  enum class Kind : std::uint8_t {
    Config,       ///< a key, a flag or a combination of them          exit 2
    Shape,        ///< sizes that do not match                         exit 2
    Unsupported,  ///< valid, but not supported here                   exit 2
    Data,         ///< training or evaluation data                     exit 3
    Format,       ///< a checkpoint or another external file           exit 4
    Memory,       ///< not enough memory                               exit 5
    Comm,         ///< communication, or a rank was lost               exit 6
    Numeric,      ///< the training diverged                           exit 7
    Io,           ///< a system call on a file failed                  exit 8
    Environment,  ///< a library, a limit, the machine                 exit 8
    Bug,          ///< a bug in tessera                                exit 70
  };

  /// `what` describes the problem with the offending values; `fix` says what to type instead (may
  /// be empty).
  Error(Kind kind, const std::string& what, std::string fix = "", Where where = Where::here());

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] const std::string& fix() const noexcept { return fix_; }
  [[nodiscard]] const Where& where() const noexcept { return where_; }
  /// Returns "what\n  fix: ..." without the source position, as a user reads it.
  [[nodiscard]] std::string text() const;

 private:
  Kind kind_;
  std::string fix_;
  Where where_;
};

/// Exit codes of the program that are not tied to a kind of error.
inline constexpr int kExitOk = 0;
inline constexpr int kExitIncomplete =
    9;  ///< training finished, but something that was requested failed
inline constexpr int kExitStopped = 75;       ///< stopped by SIGTERM after saving
inline constexpr int kExitInterrupted = 130;  ///< stopped by Ctrl-C after saving
inline constexpr int kExitTerminated = 143;   ///< stopped by SIGTERM before anything could be saved

int exit_code(Error::Kind kind) noexcept;
std::string_view name(Error::Kind kind) noexcept;

}  // namespace tessera

/// Throws an Error unless `cond` holds. Message and fix are evaluated only when `cond` is false.
#define TESSERA_REQUIRE(cond, kind, what, fix)                                        \
  do {                                                                                \
    if (!(cond)) throw ::tessera::Error(::tessera::Error::Kind::kind, (what), (fix)); \
  } while (false)

/// Throws Error{Bug} unless `cond` holds. For conditions that only a bug in tessera can violate.
#define TESSERA_ASSERT(cond)                                                                \
  do {                                                                                      \
    if (!(cond)) throw ::tessera::Error(::tessera::Error::Kind::Bug, "broken: " #cond, ""); \
  } while (false)
