// SPDX-License-Identifier: Apache-2.0
// The one exception type of this library, and the exit code that each kind of error ends the
// program with.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

/// A source position; std::source_location by hand, because clang-tidy 14 cannot parse libstdc++
/// 12's.
struct Where {
  const char* file;
  int line;
  static constexpr Where here(const char* f = __builtin_FILE(), int l = __builtin_LINE()) {
    return {f, l};
  }
};

/// What went wrong, where, and what to do about it. The only exception this library throws.
class Error : public std::runtime_error {
 public:
  enum class Kind : std::uint8_t {
    Config,       ///< a key, a flag or a combination of them          exit 2
    Shape,        ///< sizes that do not fit each other                exit 2
    Unsupported,  ///< understood, but not possible here               exit 2
    Data,         ///< training or evaluation data                     exit 3
    Format,       ///< a checkpoint or another file from outside       exit 4
    Memory,       ///< does not fit                                    exit 5
    Comm,         ///< communication, or a rank was lost               exit 6
    Numeric,      ///< diverged                                        exit 7
    Io,           ///< a system call on a file failed                  exit 8
    Environment,  ///< a library, a limit, the machine                 exit 8
    Bug,          ///< ours                                            exit 70
  };

  /// `what` says what is wrong with its values; `fix` what to type instead (may be empty).
  Error(Kind kind, const std::string& what, std::string fix = "", Where where = Where::here());

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] const std::string& fix() const noexcept { return fix_; }
  [[nodiscard]] const Where& where() const noexcept { return where_; }
  /// "what\n  fix: ..." without the source position, as a user reads it.
  [[nodiscard]] std::string text() const;

 private:
  Kind kind_;
  std::string fix_;
  Where where_;
};

/// Exit codes of the program that are not tied to a kind of error.
inline constexpr int kExitOk = 0;
inline constexpr int kExitIncomplete =
    9;  ///< trained to the end, but something asked for was not done
inline constexpr int kExitStopped = 75;       ///< SIGTERM, saved
inline constexpr int kExitInterrupted = 130;  ///< Ctrl-C, saved
inline constexpr int kExitTerminated = 143;   ///< SIGTERM before anything could be saved

int exit_code(Error::Kind kind) noexcept;
std::string_view name(Error::Kind kind) noexcept;

}  // namespace tessera

/// Message and fix are built only when `cond` is false.
#define TESSERA_REQUIRE(cond, kind, what, fix)                                        \
  do {                                                                                \
    if (!(cond)) throw ::tessera::Error(::tessera::Error::Kind::kind, (what), (fix)); \
  } while (false)

/// States what only our own mistake can break.
#define TESSERA_ASSERT(cond)                                                                \
  do {                                                                                      \
    if (!(cond)) throw ::tessera::Error(::tessera::Error::Kind::Bug, "broken: " #cond, ""); \
  } while (false)
