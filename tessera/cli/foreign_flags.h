// SPDX-License-Identifier: Apache-2.0
// Flags that scripts for DeepSpeed, Hugging Face and Megatron-LM pass, as the keys that they set.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::cli {

/// What was found among the words of a command line.
struct ForeignFlags {
  struct Setting {
    std::string flag;  ///< as typed
    std::string key;   ///< "optimizer.lr"
    json::Value value;
  };
  std::vector<Setting> settings;
  std::string config;              ///< of --deepspeed or --deepspeed_config; empty: not given
  std::vector<std::string> notes;  ///< flags of launchers that have no meaning here
};

/// Takes the known flags and their values out of `words`; "-" and "_" in names are the same.
/// Error{Config} for a value that is missing or no number, Error{Unsupported} with one line of cure
/// for a launcher's flag that asks for other hosts or a search.
ForeignFlags take_foreign_flags(std::vector<std::string>& words);

/// The configuration that the words name, `named` as such or one of the flags; empty: none does.
/// Error{Config} for two different ones.
std::string config_of(const std::string& named, const ForeignFlags& flags);

/// Sets the keys in `source`, under the names that they have now, then those of `overrides`
/// (--set). Last of all `warmup_steps` becomes the parameter that the schedule knows, and without a
/// schedule Hugging Face's default one, linear; a warm-up ratio does where no steps are given, and
/// needs trainer.max_steps. Layers of a virtual pipeline stage become chunks: Error{Config} where
/// the model does not divide into them. A way to share tokens that is neither a ring nor Ulysses is
/// Error{Unsupported}. A schedule of DeepSpeed in `source` stays, whatever --lr_scheduler_type
/// says, as in Hugging Face. Returns what the user should be told.
std::vector<std::string> apply(const ForeignFlags& flags,
                               json::Value& source,
                               std::span<const std::string> overrides = {});

/// All of them, with two dashes.
std::vector<std::string> foreign_flag_names();
/// Lines for --help.
std::string foreign_flags_help();

}  // namespace tessera::cli
