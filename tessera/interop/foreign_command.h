// SPDX-License-Identifier: Apache-2.0
// Commands of other programs, as their users type them: `torchrun --nproc_per_node 8
// pretrain_gpt.py
// ...`, `trl sft --config sft.yaml`. A command becomes the configuration that it means. Nothing of
// a script is executed or read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::interop {

/// The meaning of a command of another program.
struct ForeignCommand {
  std::string program;             ///< "Hugging Face's run_clm.py"
  std::string command = "train";   ///< tessera's command
  std::vector<std::string> words;  ///< the words of a command other than train
  /// The configuration. The place of each value is the option that sets it, as typed, its line in a
  /// file, or the program whose default it is.
  json::Value source;
  std::optional<std::int64_t> ranks;
  /// For the user, if `ranks` are used: the command names no number, and they are the fewest that
  /// its layout needs. Another number, such as that of a launcher, takes precedence.
  std::string ranks_note;
  std::vector<std::string> host_words;  ///< flags of hosts for take_host_flags()
  std::vector<std::string> own_words;   ///< tessera's own flags: --dry-run, --set, --resume, -q
  std::vector<std::string> notes;       ///< for the user
  std::string name = "run";             ///< of the run, without an output folder
};

/// True if the words begin with a launcher or a program whose commands are read: torchrun, python,
/// accelerate, deepspeed, colossalai, srun, mpirun, trl, axolotl, llamafactory-cli, or the script
/// of such a program. Another script is such a command only behind a launcher.
bool is_foreign_command(const std::vector<std::string>& words);

/// True if the words name a script or a command of a program that is known, however its options.
bool knows_foreign_command(const std::vector<std::string>& words);

/// Reads a command for which is_foreign_command() is true. Throws one Error{Config} that lists
/// every option that is unknown or refused, each with the nearest name or the alternative; for a
/// script that is not known, two launchers, a shell variable that is left in, and typographic
/// quotes or dashes; Error{Unsupported} for a script whose task does not exist here.
ForeignCommand read_foreign_command(const std::vector<std::string>& words);

/// Returns the configuration as JSON with a comment behind each value: the option, the line or the
/// default that it comes from.
std::string with_origins(const json::Value& source);

}  // namespace tessera::interop
