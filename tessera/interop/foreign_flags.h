// SPDX-License-Identifier: Apache-2.0
// Converts flags of scripts for DeepSpeed, Hugging Face and Megatron-LM to configuration keys.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::interop {

/// The flags found on a command line.
struct ForeignFlags {
  struct Setting {
    std::string flag;  ///< as typed
    std::string key;   ///< "optimizer.lr"
    json::Value value;
  };
  std::vector<Setting> settings;
  std::string config;              ///< value of --deepspeed or --deepspeed_config; empty: not given
  std::vector<std::string> notes;  ///< notes about launcher flags that have no effect here
};

/// Removes the known flags and their values from `words`; "-" and "_" in names are equivalent.
/// Throws Error{Config} for a value that is missing or not a number, and Error{Unsupported} with a
/// remedy for a launcher flag that requests other hosts or a search.
ForeignFlags take_foreign_flags(std::vector<std::string>& words);

/// The configuration on the command line, `named` explicitly or by one of the flags; empty: none.
/// If both name one, the training has the name of the first (merged_config.h).
std::string config_of(const std::string& named, const ForeignFlags& flags);

/// Sets the keys in `source` under their current names, then those of `overrides` (--set). At the
/// end `warmup_steps` becomes the schedule's parameter; without a schedule it selects Hugging
/// Face's default, linear. A warm-up ratio is used if no steps are given, and needs
/// trainer.max_steps. Layers of a virtual pipeline stage become chunks; throws Error{Config} if the
/// model is not divisible into them. Throws Error{Unsupported} for a context-parallel mode other
/// than a ring or Ulysses. A DeepSpeed schedule in `source` is kept, whatever --lr_scheduler_type
/// says, as in Hugging Face. Returns notes for the user.
std::vector<std::string> apply(const ForeignFlags& flags,
                               json::Value& source,
                               std::span<const std::string> overrides = {});

/// All names, with two dashes.
std::vector<std::string> foreign_flag_names();
/// Lines for --help.
std::string foreign_flags_help();

}  // namespace tessera::interop
