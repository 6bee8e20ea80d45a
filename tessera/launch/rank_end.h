// SPDX-License-Identifier: Apache-2.0
// Descriptions of how a rank ended.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {

/// Returns "signal 9 (SIGKILL)".
std::string signal_text(int signal);

/// The loss of a rank that did not announce its end, as the first line of the report and for the
/// other ranks.
struct Loss {
  std::string text;  ///< "rank 1 was lost: signal 9 (SIGKILL) at step 12; sent by a user or another
                     ///< program"
  std::string remedy;
  Error::Kind kind = Error::Kind::Comm;  ///< Memory if the kernel killed it for lack of memory
};
/// `status` is from waitpid; `out_of_memory`: the kernel's counter of OOM kills rose while the
/// ranks ran.
Loss describe_loss(
    int rank, int status, std::int64_t step, bool out_of_memory, const Messages& messages);
/// For a rank whose exit status only its launcher receives.
Loss describe_silent_loss(int rank,
                          std::int64_t step,
                          bool out_of_memory,
                          const Messages& messages);
/// Adds to the text on which host the rank ran. An empty name, in a job of one host, adds nothing.
Loss with_host(Loss loss, const std::string& host);

/// Returns whether a rank with this exit code ended in agreement with the others, so that the world
/// is not broken.
bool is_orderly(int exit_code);
/// Returns the exit code of a job whose rank exited with this code: the same code if it is one of
/// tessera's, otherwise that of a bug, because a library must have ended the rank.
int job_exit_code(int exit_code);
/// Returns the kind with this exit code; Bug for any other code.
Error::Kind kind_of(int exit_code);
/// Returns the kind of error that broke the world; Bug if the stored kind is invalid.
Error::Kind abort_kind(const ControlPage& control);

/// Returns what broke the world, as the first entry of a report: "rank 2 failed at step 5: the loss
/// is nan", with the fix on a separate line. A world of one rank has no rank number. The message of
/// a lost or hanging rank already names the rank, and a loss has its fix on the same line.
std::string failure_text(ControlPage& control);

/// Splits the text of a broken world, as Error::text() and a lost host's message have it, at its
/// remedy, if there is one.
Error split_remedy(Error::Kind kind, const std::string& text);

/// Returns what the page knows of a rank: "at step 12, in reduce h.3 (block.cpp:44), waiting for
/// rank 1".
std::string position(const RankLine& line);

/// Returns the line of a report about a rank of which only the page is known: "rank 2: running, at
/// step 12".
std::string remote_line(int rank, const RankLine& line);

/// The largest number of hosts of a job of which each hears of the ranks of all others.
inline constexpr std::size_t kHostsThatHearAll = 32;
/// False for a rank of a job of more hosts from which this host has heard nothing: a report leaves
/// it out.
bool is_known(ControlPage& control, int rank, std::size_t hosts);

}  // namespace tessera::launch
