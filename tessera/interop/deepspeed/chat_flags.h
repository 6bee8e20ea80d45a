// SPDX-License-Identifier: Apache-2.0
// DeepSpeed-Chat's flags that need more than a key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/interop/foreign_flags.h"

namespace tessera::interop {

/// --lora_dim: an adapter whose product is scaled by 1 / rank; 0 means none. `section`: where the
/// adapter is in the configuration.
void add_lora_rank(const std::string& typed,
                   const std::string& section,
                   const std::string& value,
                   ForeignFlags& out);
/// --lora_module_name: a regular expression for the names that do not contain `part`.
std::string names_without(const std::string& part);
/// --dtype. Throws Error{Config} for another name than fp16, bf16 and fp32.
void add_dtype(const std::string& typed, const std::string& value, ForeignFlags& out);
/// --data_path with one or several files.
void add_data_paths(const std::string& typed,
                    const std::string& key,
                    const std::vector<std::string>& paths,
                    ForeignFlags& out);

/// Returns `train`, a value of data.train, with the files of `more`, a value of that kind too. A
/// null `train` has none.
json::Value with_further_data(const json::Value& train, const json::Value& more);

/// The settings that depend on others. A setting that was not given is nullptr.
struct ChatSettings {
  const ForeignFlags::Setting *lora_rate = nullptr, *minimum_rate = nullptr, *prompt = nullptr,
                              *answer = nullptr, *further_data = nullptr;
};
/// Sets them in a configuration whose other keys are set. The rate of an adapter is that of the
/// optimizer, because all else is frozen; without an adapter it has no effect, which is noted. The
/// lowest rate is that of a cosine schedule. Prompt and answer together are a sample. Further data
/// is added to data.train, except of the later steps of DeepSpeed-Chat, which is noted. Throws
/// Error{Config} for a lowest rate of another schedule, and for a prompt without an answer.
void apply_chat_settings(const ChatSettings& settings,
                         json::Value& source,
                         std::vector<std::string>& notes);

}  // namespace tessera::interop
