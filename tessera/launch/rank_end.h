// SPDX-License-Identifier: Apache-2.0
// How a rank ended, in words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {

/// "signal 9 (SIGKILL)".
std::string signal_text(int signal);

/// A death that the rank did not announce, as the first line of the report and for the other ranks.
struct Loss {
  std::string
      text;  ///< "rank 1 was lost: signal 9 (SIGKILL) at step 12; somebody or something sent it"
  std::string remedy;
  Error::Kind kind = Error::Kind::Comm;  ///< Memory if the kernel killed it for memory
};
/// `status` as waitpid gave it; `out_of_memory`: the kernel's counter of kills rose while the ranks
/// ran.
Loss describe_loss(int rank, int status, std::int64_t step, bool out_of_memory, const Words& words);
/// For a rank whose status only its launcher learns.
Loss describe_silent_loss(int rank, std::int64_t step, bool out_of_memory, const Words& words);

/// Exit codes with which a rank ends in agreement with the others: they break nothing.
bool is_orderly(int exit_code);
/// What a job whose rank left with this code ends with: the same code where the program has it, and
/// otherwise that of a bug: it is a library's.
int told_code(int exit_code);
/// The kind whose exit code this is; Bug for codes that no kind has.
Error::Kind kind_of(int exit_code);
/// The kind that broke the world; Bug for what is none.
Error::Kind abort_kind(const ControlPage& control);

/// What broke the world, as the first entry of a report: "rank 2 failed at step 5: the loss is nan"
/// and its remedy on a line of its own. A world of one rank needs no number. The message of a loss
/// names its rank itself, and has the remedy on the same line; so does that of a rank that hangs,
/// which others tell of.
std::string failure_text(ControlPage& control);

/// "at step 12, in reduce h.3 (block.cpp:44), waiting for rank 1": what the page knows of a rank.
std::string position(const RankLine& line);

}  // namespace tessera::launch
